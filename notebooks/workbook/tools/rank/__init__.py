"""Run on ranks for the tools beside it: the only room of the workbook's tools that imports torch."""
