"""Ask a broken program what is wrong with it, on a page to print: lesson 14c."""
