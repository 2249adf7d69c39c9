"""No example is held to a wall-clock deadline: on a busy machine a slow one would be a red test.

`make quick` tries few examples of each property (`--hypothesis-profile=quick`).
"""

from hypothesis import settings

settings.register_profile("workbook", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=10)
settings.load_profile("workbook")
