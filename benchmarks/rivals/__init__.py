"""Other libraries on the same stores: shuffled batches and sequential reading."""
