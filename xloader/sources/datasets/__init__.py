"""Variables that are read through xarray: those of open datasets, of dask and of files."""
