"""Opens a path, URL, store or Dataset as a source, whatever kind of data it is."""
