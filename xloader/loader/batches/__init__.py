"""Batches and single rows that a training loop is handed, and where they come from."""
