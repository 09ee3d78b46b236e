"""The frozen data behind samples: what is selected, which windows, which fields, which steps."""
