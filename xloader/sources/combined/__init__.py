"""Several sources as one source: joined along a dimension, or mixed by variable."""
