"""Work on the workers of a dask cluster: tasks of jobs, and ranks with their checkpoints."""
