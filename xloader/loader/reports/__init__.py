"""Measured epochs in words: report, bottleneck, advice, notes, the progress bar."""
