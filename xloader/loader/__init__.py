"""What a training loop iterates over: batches, ranks, states and reports."""
