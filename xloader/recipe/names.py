"""Names of the dimensions and coordinates that xloader adds to those of the data."""

from __future__ import annotations

SAMPLE = "sample"


LABEL = "_label"


CHANNEL = "channel"
