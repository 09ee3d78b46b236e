"""Finds the stored array that a lazy xarray variable or a dask array is a plain view of."""
