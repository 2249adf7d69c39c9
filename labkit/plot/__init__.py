"""Pictures of plain data: Axes in, Axes out. The only room that imports matplotlib."""
