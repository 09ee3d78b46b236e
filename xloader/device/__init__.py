"""The way of a batch to a device."""
