"""Finds a plan within a memory budget, and predicts what an epoch reads and holds."""
