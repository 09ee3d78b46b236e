"""Zarr arrays: chunks by key, decoded by our own hands."""
