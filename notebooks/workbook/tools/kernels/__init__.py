"""Tell what ranks' kernels did in memory that they share, and whether flags ordered it: lesson 06c. No torch."""
