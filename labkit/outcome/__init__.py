"""What became of a cell, told in sentences: plain data in, text out; no cluster."""
