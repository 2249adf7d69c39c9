"""Lay two matrices out over a mesh of ranks, and multiply them there: lesson 13c."""
