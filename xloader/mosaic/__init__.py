"""Predictions of samples, put back on the grid that the samples were cut from."""
