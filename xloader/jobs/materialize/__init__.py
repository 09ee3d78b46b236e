"""Stores written anew, in chunks that suit samples."""
