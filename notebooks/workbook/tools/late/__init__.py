"""Run a cell's statements with one rank late to each, and draw who waits: lesson 05."""
