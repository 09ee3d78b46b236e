"""Worker processes of a loader: they run transforms and `collate_fn` on batches it has gathered."""
