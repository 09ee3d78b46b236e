"""NaN in batches: a warning, a count, an error or nothing, as the option says."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.core.nans import NUM_FIRST
from xloader.errors import NanError, NanWarning, OptionError
from xloader.testing import write_store
from xloader.torch import IterableDataset, MapDataset, data_loader, tensor_dataset

IN_ORDER: dict[str, Any] = {"batch_size": 4, "shuffle": False}


def samples_of(*holes: int, num_steps: int = 64, chunk: int = 8) -> Samples:
    """Make samples of one step; those at ``holes`` have two NaN values each."""
    values = np.arange(num_steps * 6, dtype=np.float32).reshape(num_steps, 6)
    values[list(holes), :2] = np.nan
    fine = np.ones((num_steps, 6), np.float64)
    names = {"a": (("time", "x"), values), "b": (("time", "x"), fine)}
    counts = {"n": (("time", "x"), np.zeros((num_steps, 6), np.int16))}
    ds = xr.Dataset({**names, **counts})
    opened = xloader.open(write_store(ds, dict.fromkeys("abn", (chunk, 6))))
    return opened.window(time=1).inputs("a").targets("b").field("count", "n")


def told(batches: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in batches:
            pass
    assert {one.filename for one in caught} <= {__file__}
    return [str(one.message) for one in caught if one.category is NanWarning]


def test_a_warning_names_field_number_samples_and_remedy() -> None:
    with samples_of(5, 7).loader(**IN_ORDER, output="numpy") as loader:
        (message,) = told(loader)
        # A loader warns once only, because the user knows by then.
        assert told(loader) == []
    assert "4 values of the field 'inputs', in samples 5, 7." in message
    assert "'targets'" not in message
    assert "'count'" not in message
    for remedy in (".fillna(", "mask", ".dropna(", 'on_nan="ignore"'):
        assert remedy in message


def test_many_samples_are_named_in_part() -> None:
    with samples_of(*range(64)).loader(batch_size=16, shuffle=False, output="numpy") as loader:
        (message,) = told(loader)
    assert "32 values of the field 'inputs', in samples 0, 1, 2, 3, 4 and 11 more." in message


@pytest.mark.parametrize("threads", [1, 4])
def test_a_warning_is_of_the_first_batches_alone(threads: int) -> None:
    last, after = 4 * NUM_FIRST - 1, 4 * NUM_FIRST
    options = {**IN_ORDER, "output": "numpy", "threads": threads}
    with samples_of(last).loader(**options) as loader:
        assert len(told(loader)) == 1
        assert loader.report().num_nan == {"inputs": 2}
    with samples_of(after).loader(**options) as loader:
        assert told(loader) == []
        assert loader.report().num_nan == {}


def test_only_what_reaches_training_counts() -> None:
    filled = samples_of(5).fillna(0.0)
    with filled.loader(**IN_ORDER, output="numpy", on_nan="raise") as loader:
        assert told(loader) == []
        assert sum(1 for _ in loader) == 16
    made = samples_of().map(lambda ds: ds.assign(targets=ds["targets"] * np.nan))
    with made.loader(**IN_ORDER, output="numpy") as loader:
        (message,) = told(loader)
    assert "24 values of the field 'targets', in samples 0, 1, 2, 3." in message


def test_all_are_counted_and_nothing_is_said() -> None:
    with samples_of(5, 60, 61).loader(batch_size=4, output="numpy", on_nan="count") as loader:
        for _ in range(2):
            assert told(loader) == []
            assert loader.report().num_nan == {"inputs": 6}
    assert "inputs 6 values" in str(loader.report())
    assert loader.report().to_dict()["num_nan"] == {"inputs": 6}


def test_what_comes_again_is_counted_again_and_padding_is_not() -> None:
    """Repeated samples count again and padding does not: four samples on three ranks."""
    samples, num = samples_of(*range(4), num_steps=4, chunk=1), 0
    for rank in range(3):
        own = {"world": xloader.World(rank, 3), "batch_size": 2}
        with samples.loader(**own, output="numpy", on_nan="count") as loader:
            padded = sum(int(batch.is_padding.sum()) for batch in loader)
            num += loader.report().num_nan.get("inputs", 0)
            assert padded in (0, 1)
    assert num == 4 * 2
    twice = samples.weighted(np.ones(4), 8)
    with twice.loader(batch_size=2, output="numpy", on_nan="count") as loader:
        assert told(loader) == []
        assert loader.report().num_nan == {"inputs": 8 * 2}


def test_a_batch_with_nan_is_an_error_where_it_was_asked_for() -> None:
    with samples_of(50, 51).loader(**IN_ORDER, output="numpy", on_nan="raise") as loader:
        seen: list[int] = []
        with pytest.raises(NanError, match=r"'inputs', in samples 50, 51") as caught:
            seen.extend(batch.ids[0] for batch in loader)
        assert seen == list(range(0, 48, 4))
        assert (caught.value.field, caught.value.ids) == ("inputs", (50, 51))
        assert isinstance(caught.value, ValueError)
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.ids) == (str(caught.value), caught.value.ids)


def test_nobody_looks_where_nobody_is_to() -> None:
    with samples_of(0).loader(**IN_ORDER, output="numpy", on_nan="ignore") as loader:
        assert told(loader) == []
        assert loader.report().num_nan == {}


@pytest.mark.parametrize("on_nan", ["never", None, 1, ["warn"]])
def test_other_choices_are_refused(on_nan: Any) -> None:
    samples = samples_of()
    for make in (
        lambda: samples.loader(on_nan=on_nan),
        lambda: MapDataset(samples, on_nan=on_nan),
        lambda: IterableDataset(samples, on_nan=on_nan),
        lambda: data_loader(samples, on_nan=on_nan),
        lambda: tensor_dataset(samples, on_nan=on_nan),
    ):
        with pytest.raises(OptionError, match=r"on_nan is not one of the choices.*Allowed: 'warn'"):
            make()


# Doors


def stock(samples: Samples, **options: Any) -> Any:
    return data_loader(samples, 4, shuffle=False, **options)


def by_any_ids(samples: Samples, **options: Any) -> Any:
    dataset = MapDataset(samples, **options)
    return (dataset.__getitems__(list(range(n, n + 4))) for n in range(0, 64, 4))


def stream(samples: Samples, **options: Any) -> Any:
    return IterableDataset(samples, **IN_ORDER, **options)


DOORS = {"data_loader": stock, "ids": by_any_ids, "stream": stream}


@pytest.mark.parametrize("door", DOORS)
def test_doors_warn_once_of_the_first_batches_and_raise_at_any(door: str) -> None:
    (message,) = told(DOORS[door](samples_of(5, 20)))
    assert "2 values of the field 'inputs', in sample 5." in message
    assert told(DOORS[door](samples_of(63))) == []
    assert told(DOORS[door](samples_of(5), on_nan="ignore")) == []
    with pytest.raises(NanError, match="in sample 63"):
        list(DOORS[door](samples_of(63), on_nan="raise"))
    # They have no report to count in.
    with pytest.raises(OptionError, match=r"cannot be counted here.*no report.*use samples.loader"):
        list(DOORS[door](samples_of(), on_nan="count"))


def test_workers_of_a_data_loader_raise_it_too() -> None:
    loader = data_loader(samples_of(63), 4, num_workers=1, on_nan="raise")
    with pytest.raises(NanError, match="in sample 63"):
        list(loader)


def test_all_in_memory() -> None:
    with pytest.warns(NanWarning, match="in sample 5"):
        dataset = tensor_dataset(samples_of(5), "16MiB")
    assert int(dataset.tensors[0].isnan().sum()) == 2
    with pytest.raises(NanError):
        tensor_dataset(samples_of(63), "16MiB", on_nan="raise")
    with pytest.raises(OptionError, match="cannot be counted here, because there is no report"):
        tensor_dataset(samples_of(), "16MiB", on_nan="count")
