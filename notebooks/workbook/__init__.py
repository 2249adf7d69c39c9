"""What the lessons own: their exercises and questions, one module a lesson or more, and the tools of one lesson alone.

labkit finds all of it through `labkit.content`; nothing here is imported by labkit in any other place.
"""

TOOLS: dict[str, str] = {}
