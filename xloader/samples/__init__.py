"""The user's interface: opening stores, describing and choosing samples, and making batches."""
