"""Zarr arrays: chunks are read by their keys, and decoded by xloader itself where it can."""
