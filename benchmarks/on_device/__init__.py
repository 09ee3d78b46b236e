"""What `benchmarks.gpu` measures: the way of batches to a GPU, and training there."""
