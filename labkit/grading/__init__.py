"""Hold what a learner's function did against what it should do: plain data; neither torch nor a cluster."""
