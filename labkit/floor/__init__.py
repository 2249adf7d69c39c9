"""Lie under everything: words, errors, files, clocks, limits. Imports nothing above it."""
