"""Measured epochs in words: report, bottleneck, advice, notes."""
