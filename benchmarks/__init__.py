"""Benchmarks of xloader against the machine's limit and other libraries:

``python -m benchmarks``.
"""
