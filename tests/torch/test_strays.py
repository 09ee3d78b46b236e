"""What does not come as `data_loader` puts it together: other samplers, samples, processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch.utils.data import DataLoader, Subset

import xloader
from xloader import Samples
from xloader.errors import WorkersWarning
from xloader.testing import write_store
from xloader.torch import ChunkSampler, MapDataset, collate

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.MixingWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.AmplificationWarning"),
]

MEMORY = "64KiB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # The value at each time is the id of its sample.
    values = np.repeat(np.arange(240.0), 12).reshape(240, 3, 4)
    path = tmp_path_factory.mktemp("stores") / "times.zarr"
    write_store(xr.Dataset({"t": (("time", "y", "x"), values)}), {"t": (16, 3, 4)}, path)
    return path


@pytest.fixture
def samples(folder: Path) -> Samples:
    return xloader.open(folder).window(time=1)


def times_of(batches: Iterable[Any]) -> list[int]:
    return [int(time) for batch in batches for time in batch[0].flatten(1)[:, 0]]


def test_ids_of_a_sampler_in_another_order_are_still_those_asked_for(samples: Samples) -> None:
    dealt = list(ChunkSampler(samples, 16, memory=MEMORY))
    # The first of them is the first id of a planned batch; the rest is not that batch's.
    asked = [dealt[0], *dealt[100:115]]
    with pytest.warns(WorkersWarning, match="dealt out anew"):
        rows = MapDataset(samples, MEMORY).__getitems__(asked)
    assert [int(row[0].flat[0]) for row in rows] == asked


@pytest.mark.parametrize("first", [0, 60])
def test_a_sampler_of_other_samples_is_told(samples: Samples, first: int) -> None:
    sampler = ChunkSampler(samples.select(range(120)), 16, memory=MEMORY, shuffle=False)
    dataset = MapDataset(samples.select(range(239, first, -1)), MEMORY)
    loader = DataLoader(dataset, 16, sampler=sampler, collate_fn=collate)
    with pytest.warns(WorkersWarning, match="other samples") as caught:
        batches = list(loader)
    assert times_of(batches) == [239 - i for batch in batches for i in batch.ids]
    assert len(caught) == 1
