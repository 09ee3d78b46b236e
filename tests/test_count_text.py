"""Numbers of things are written in one way, and one thing is no plural."""

from __future__ import annotations

import numpy as np
import xarray as xr

import xloader
from xloader.testing import write_store


def test_an_epoch_of_one_batch_has_no_plurals():
    ds = xr.Dataset({"t": (("time", "x"), np.ones((2, 5), "f4"))})
    samples = xloader.open(write_store(ds, {"t": (2, 5)})).window(time=2)
    assert "1 sample>" in repr(samples)
    with samples.loader(batch_size=4, output="numpy", threads=1) as loader:
        for _ in loader:
            pass
        report = loader.report()
    for text in (str(loader.explain()), str(report)):
        assert "1 in 1 batch\n" in text
    assert "1 chunk, " in str(loader.explain())
    assert "of the time of 1 thread" in str(report)
