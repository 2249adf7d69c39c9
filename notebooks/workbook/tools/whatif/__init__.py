"""Compute what collectives would cost on machines that are not here: lesson 07."""
