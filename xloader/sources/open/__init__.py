"""Finds out what a path, URL, store or Dataset is, and makes a source of it."""
