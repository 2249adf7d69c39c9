"""Count how many times each whole number occurs in the ranks' lists, and draw it: lessons 10 and 13d."""
