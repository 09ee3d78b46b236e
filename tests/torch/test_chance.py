"""Random numbers of a sample are the same at every door."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch.utils.data import DataLoader

import xloader
from xloader import Samples
from xloader.torch import IterableDataset, data_loader
from xloader.transforms.rng import Rng

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def line(size: int) -> Samples:
    times = np.arange(size, dtype=np.float32)
    return xloader.open(xr.Dataset({"t": ("time", times)})).window(time=1)


def noise(frame: xr.Dataset, rng: Rng) -> xr.Dataset:
    return xr.Dataset({"noise": ("sample", rng.uniform())})


def told(batches: Iterable[Any]) -> list[tuple[int, float]]:
    return sorted(
        (int(i), float(x))
        for batch in batches
        for i, x in zip(batch.ids, batch[0].reshape(-1), strict=True)
    )


def test_workers_give_what_a_loader_gives() -> None:
    samples = line(90).weighted(np.linspace(1, 3, 90), 120).map(noise, random=True)
    with samples.loader(batch_size=8, memory="1MiB", seed=2, output="numpy") as loader:
        expected = [told(loader) for _ in range(2)]
    assert expected[0] != expected[1]
    assert len(set(expected[0])) == 120
    # The second worker draws its numbers in another process.
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    batches = data_loader(samples, batch_size=8, memory="1MiB", seed=2, **options)
    assert [told(batches) for _ in range(2)] == expected
    dataset = IterableDataset(samples, batch_size=5, memory="1MiB", seed=2)
    assert told(DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)) == expected[0]


def test_functions_on_samples_know_a_sample_that_comes_again() -> None:
    samples = line(30).weighted(np.ones(30), 90)

    def epoch_of(**options: Any) -> list[tuple[int, float]]:
        dataset = IterableDataset(
            samples,
            memory="1MiB",
            transform=lambda x: np.random.random(),  # noqa: NPY002
            **options,
        )
        return sorted(
            (int(i), x) for rows in dataset for i, (x,) in zip(rows.ids, rows, strict=True)
        )

    expected = epoch_of(batch_size=8)
    assert len({x for _, x in expected}) == 90
    assert (
        epoch_of(batch_size=13)
        == epoch_of(batch_size=8, plan=xloader.PlanRules(lanes=2))
        == expected
    )
    assert epoch_of(batch_size=8, seed=1) != expected
    for num_workers in (0, 2):
        batches = data_loader(
            samples,
            batch_size=8,
            num_workers=num_workers,
            memory="1MiB",
            transform=lambda x: np.random.random(),  # noqa: NPY002
            multiprocessing_context="fork" if num_workers else None,
        )
        assert told(batches) == expected
