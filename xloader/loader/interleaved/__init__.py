"""Loaders of several sets of samples, whose batches are composed of rows of each."""
