"""Which samples are valid, and scores of samples."""
