"""The documentation as a reader sees it, once ``make docs`` has built it."""
