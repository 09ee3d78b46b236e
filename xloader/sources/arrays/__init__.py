"""Variables of xarray and dask: read through xarray, or directly where they view a store."""
