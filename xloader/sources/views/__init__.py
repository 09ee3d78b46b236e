"""What a lazy xarray variable shows of an array underneath: slices, dask graphs, selections."""
