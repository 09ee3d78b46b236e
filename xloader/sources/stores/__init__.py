"""Zarr stores: where they lie, how to open and to name them."""
