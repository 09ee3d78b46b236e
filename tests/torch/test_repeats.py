"""Samplers and streams say that an epoch begins anew, also with worker processes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.torch.waves import MEMORY, ids_of, samples_of, write_waves
from xloader.errors import EpochWarning
from xloader.torch import IterableDataset, data_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_waves(tmp_path_factory.mktemp("stores") / "waves.zarr", 480)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_sampler_tells_the_same_batches(folder: Path, num_workers: int) -> None:
    loader = data_loader(samples_of(folder), batch_size=16, num_workers=num_workers, memory=MEMORY)
    # One batch is a look at the data, whatever the workers have asked for besides.
    for num in (1, 1, 30, 2):
        assert len(list(islice(loader, num))) == num
    with pytest.warns(EpochWarning, match="epoch 1 .*set_epoch.*resume") as caught:
        next(iter(loader))
    assert caught[0].filename == __file__


def test_workers_share_what_a_stream_has_given(folder: Path) -> None:
    dataset = IterableDataset(samples_of(folder), batch_size=16, memory=MEMORY)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=None, num_workers=2)
    assert len(ids_of(islice(loader, 1))) == 16
    assert len(ids_of(loader)) == 480
    # It is said in a worker of the second iteration, where a warning is an error here too.
    with pytest.raises(EpochWarning, match="epoch 0"):
        next(iter(loader))
