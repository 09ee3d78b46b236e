"""Statistics of what samples need, of a whole archive or a stream."""
