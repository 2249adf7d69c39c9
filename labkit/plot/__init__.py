"""Draw pictures of plain data: data in, Axes out. The only room that imports matplotlib."""
