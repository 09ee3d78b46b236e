"""What others do with the same stores: shuffled batches, and all of it in turn."""
