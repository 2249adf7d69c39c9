"""Serve one lesson or two each, and nothing else: tools that labkit finds by name (`workbook.TOOLS`).

A tool has its pure part, what starts ranks for it, the values that show themselves (`show`) and their pictures
(`plot`: the only modules that import matplotlib) side by side. What runs on ranks is in `rank`, the only folder
that imports torch, and is named to the ranks as a string. No tool imports a lesson.
"""
