"""Stores and files: where they are, how they are opened, and how messages name them."""
