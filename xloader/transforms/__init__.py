"""Transforms of samples: recorded methods, functions, normalising, random numbers, slabs."""
