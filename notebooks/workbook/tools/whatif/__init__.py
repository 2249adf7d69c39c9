"""Compute what collectives would cost on machines that nobody here has: lesson 07."""
