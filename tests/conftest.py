"""No example is held to a wall-clock deadline: on a busy machine a slow one would be a red test."""

from hypothesis import settings

settings.register_profile("workbook", deadline=None)
settings.load_profile("workbook")
