"""What a collective means and costs, and what ranks recorded: Python and numpy, without torch or a cluster."""
