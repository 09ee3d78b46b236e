"""The work on bytes that is written in C, and done without Python's lock."""
