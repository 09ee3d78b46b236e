"""Names of the dimensions and coordinates that xloader adds to those of the data."""

from __future__ import annotations

SAMPLE = "sample"
"""The dimension that counts the samples of a batch."""


LABEL = "_label"
"""Suffix of a coordinate that holds the labels of each sample along a dimension."""


CHANNEL = "channel"
"""The leading dimension of a field whose variables are stacked."""
