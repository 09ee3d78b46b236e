"""Several sources as one: concatenated along a dimension, or mixed by variable."""
