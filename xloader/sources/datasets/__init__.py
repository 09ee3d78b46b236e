"""Open xarray datasets: what is a plain view of Zarr, and what is read through xarray."""
