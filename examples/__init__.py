"""Whole programs that use xloader, run in a clone: ``python -m examples.restart``."""
