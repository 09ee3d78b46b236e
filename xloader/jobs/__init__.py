"""Jobs that go through all chunks of a source once. They take a recipe and options."""
