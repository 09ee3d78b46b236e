"""Compares loaders on a user's own data: ``xloader bench``."""
