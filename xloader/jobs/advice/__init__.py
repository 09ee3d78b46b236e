"""Which chunks would suit samples and a loader better."""
