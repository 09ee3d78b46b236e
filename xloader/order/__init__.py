"""The order of samples in an epoch: cohorts, the order of each lane, and the rows of each step."""
