"""Worker processes of a loader: their setup, messages and runs."""
