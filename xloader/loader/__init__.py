"""The loader that a training loop iterates over: its batches, ranks, states and reports."""
