"""The frozen data behind samples: the selection, the windows, the fields and the transforms."""
