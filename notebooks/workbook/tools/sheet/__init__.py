"""Lay every primitive out on two pages to print: the cheat sheet."""
