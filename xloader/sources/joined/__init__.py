"""Several sources as one along a dimension."""
