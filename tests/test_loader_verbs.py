"""The verb `Samples.loader`: its options, and what the loader takes from the samples."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import replace
from typing import get_type_hints

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.core.options import LoaderKeywords, LoaderOptions
from xloader.errors import OptionError, TransformError
from xloader.testing import write_store


def make_samples() -> xloader.Samples:
    """Make 40 windows over chunks of 4."""
    values = np.arange(42 * 3, dtype=np.float32).reshape(42, 3)
    dataset = xr.Dataset({"a": (("time", "x"), values)})
    return xloader.open(write_store(dataset, {"a": (4, 3)})).window(time=3, stride=1)


def test_the_verb_has_every_option_with_its_default() -> None:
    asked = inspect.signature(xloader.Samples.loader).parameters
    taken = inspect.signature(LoaderOptions).parameters
    assert {name: p.default for name, p in asked.items() if name not in ("self", "unknown")} == {
        name: p.default for name, p in taken.items()
    }
    documented = xloader.Samples.loader.__doc__ or ""
    assert all(name in documented for name in taken)


def test_keywords_are_the_options_with_the_same_types() -> None:
    """Type checkers and editors see the options that `LoaderOptions` has."""
    types = get_type_hints(LoaderOptions)
    taken = inspect.signature(LoaderOptions).parameters
    assert get_type_hints(LoaderKeywords) == {name: types[name] for name in taken}
    shown = dict(inspect.signature(xloader.Samples.loader).parameters)
    del shown["self"]
    assert {n: p.default for n, p in shown.items()} == {n: p.default for n, p in taken.items()}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"num_workers": 4},
            "no option 'num_workers'.*pass threads=, the number of threads that load",
        ),
        ({"pin_memory": True}, "no option 'pin_memory'.*pass device="),
        ({"batchsize": 4}, "no option 'batchsize'.*did you mean 'batch_size'"),
        (
            {"shuffle": "no"},
            "shuffle is not one of the choices. Given: 'no'. Allowed: True or False",
        ),
    ],
)
def test_options_of_others_are_told_from_ours(options: dict[str, object], text: str) -> None:
    for make in (make_samples().loader, make_samples().explain):
        with pytest.raises(OptionError, match=text):
            make(**options)


def test_a_batch_of_more_than_there_is_takes_no_more_memory() -> None:
    samples = make_samples()
    with samples.loader(batch_size=10**9, memory="1MiB", output="numpy") as loader:
        (batch,) = loader
        assert len(batch.ids) == 40
        assert loader.explain().peak_nbytes < 2**20


def test_a_loader_in_use_can_be_sent_elsewhere() -> None:
    with make_samples().loader(batch_size=8, output="numpy", seed=3) as loader:
        expected = [batch.ids.tolist() for batch in loader]
        batches = iter(loader)
        next(batches)
        copy = pickle.loads(pickle.dumps(loader))
    with copy:
        assert copy.epoch == 0
        assert [batch.ids.tolist() for batch in copy] == expected


def test_a_device_that_is_not_there_is_refused_at_once() -> None:
    pytest.importorskip("torch")
    with pytest.raises(
        OptionError, match=r"cannot use this device.*Given: device='nonsense'.*To mend it"
    ):
        make_samples().loader(device="nonsense")


def test_tensors_go_to_the_device() -> None:
    torch = pytest.importorskip("torch")
    with make_samples().loader(batch_size=40, device="meta") as loader:
        (batch,) = list(loader)
    assert batch.a.device == torch.device("meta")


def test_a_last_batch_that_could_not_be_made_leaves_the_epoch() -> None:
    taken = []

    def collate(samples: list[tuple[np.ndarray, ...]]) -> int:
        if len(taken) == 4:
            raise ValueError("the fifth")
        taken.append(len(samples))
        return len(samples)

    with make_samples().loader(batch_size=8, output="numpy", collate_fn=collate) as loader:
        with pytest.raises(TransformError, match="the fifth"):
            list(loader)
        assert loader.epoch == 0


def test_an_epoch_from_memory_says_so() -> None:
    with make_samples().loader(batch_size=8, output="numpy") as loader:
        list(loader)
        assert "already in memory" not in str(loader.report())
        told = "0 chunks, 0 B decoded: all needed chunks are already in memory"
        assert told in str(loader.explain())
        list(loader)
        for report in (loader.report(), replace(loader.report(), _expected=None)):
            assert told in str(report)
            assert str(report).count("\n  reads  ") == 1


def test_a_report_of_a_first_batch_that_failed_makes_sense() -> None:
    def fail(frame: xr.Dataset) -> xr.Dataset:
        if frame.sizes["sample"] > 1:
            raise ValueError("no")
        return frame

    with make_samples().map(fail).loader(batch_size=8, output="numpy") as loader:
        with pytest.raises(TransformError, match="ValueError: no"):
            next(iter(loader))
        report = loader.report()
    assert report.num_steps == 0
    assert report.wait_seconds <= report.seconds
