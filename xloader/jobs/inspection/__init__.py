"""Looks at a store: variables, grids, labels, absent chunks and NaN. ``xloader inspect``."""
