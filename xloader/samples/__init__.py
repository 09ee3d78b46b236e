"""What a user writes: opening, describing and choosing samples, and asking for batches."""
