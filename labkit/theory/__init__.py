"""What a collective means and what it costs: pure Python and numpy, without torch and without a cluster."""
