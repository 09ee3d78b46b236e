"""Impossible values of options are refused where they are given, at every door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.core.nbytes import parse_nbytes
from xloader.core.options import LoaderOptions, PlanRules, divisors_of
from xloader.errors import OptionError, SampleIndexError

HUGE = 10**5000
"""A number with more digits than Python converts to text."""


@pytest.fixture
def samples() -> Samples:
    values = np.arange(60, dtype="f4").reshape(20, 3)
    dataset = xr.Dataset({"t": (("time", "x"), values), "u": (("time", "x"), values)})
    return xloader.open(dataset).window(time=2)


DOORS: dict[str, Callable[..., Any]] = {
    "loader": lambda s, **options: s.loader(output="numpy", **options),
    "explain": lambda s, **options: s.explain(**options),
    "data_loader": lambda s, **options: xloader.torch.data_loader(s, **_of_torch(options)),
    "ChunkSampler": lambda s, **options: xloader.torch.ChunkSampler(s, **_of_torch(options)),
    "IterableDataset": lambda s, **options: xloader.torch.IterableDataset(s, **_of_torch(options)),
    "Rollout": lambda s, **options: xloader.Rollout(lambda epoch: s, output="numpy", **options),
}


def _of_torch(options: dict[str, Any]) -> dict[str, Any]:
    if "prefetch" not in options:
        return options
    return {"prefetch_factor": options["prefetch"]}


BAD: dict[str, tuple[Any, ...]] = {
    "batch_size": (0, 2**31, 2**70, HUGE, np.timedelta64(3, "h"), 2.0, True),
    "memory": (2**60 + 1, 2**200, HUGE, True, 2.5, b"5", np.nan, np.inf, "1e20GiB", "1025PiB"),
    "prefetch": (-1, 2**31, 2**70, HUGE, "2"),
    "seed": (2**64, -(2**63) - 1, 2**200, HUGE, 1.5, None),
    "threads": (0, 4097, 2**40, HUGE),
    "shuffle": (np.array([1, 2]), "no", None),
    "drop_last": (np.array([1, 0]), 2),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", BAD)
def test_refused_at_every_door(samples: Samples, door: str, name: str) -> None:
    pytest.importorskip("torch")
    for value in BAD[name]:
        with pytest.raises(OptionError, match=rf"^{name} .*Given: "):
            DOORS[door](samples, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 1),
        ("batch_size", 2**31 - 1),
        ("prefetch", 0),
        ("threads", 1),
        ("seed", 2**64 - 1),
        ("seed", -(2**63)),
        ("threads", 4096),
        ("memory", 2**60),
        ("memory", 2e9),
        ("memory", np.int64(4096)),
        ("shuffle", np.True_),
    ],
)
def test_the_least_and_the_greatest_are_allowed(name: str, value: Any) -> None:
    assert getattr(LoaderOptions(**{name: value}), name) == value


RULES: dict[str, tuple[Any, ...]] = {
    "max_amplification": (0.99, 10**400, HUGE, np.inf, np.nan, np.timedelta64(3, "h")),
    "lanes": (0, 2**31, 2**70, HUGE),
    "spread": (-1, 2**31, 2**70, HUGE, 0.5),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_are_refused_where_they_are_made(name: str) -> None:
    for value in RULES[name]:
        with pytest.raises(OptionError, match=rf"^{name} .*Given: "):
            PlanRules(**{name: value})
    for options in (
        {"lanes": 1, "spread": 0},
        {"max_amplification": 1.0},
        {"max_amplification": 1e300},
    ):
        assert vars(PlanRules(**options)).items() >= options.items()


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("rules", [{"lanes": 2}, 2, PlanRules])
def test_what_is_no_rule_is_refused_at_every_door(samples: Samples, door: str, rules: Any) -> None:
    pytest.importorskip("torch")
    with pytest.raises(OptionError, match=r"^plan .*Given: .*PlanRules\("):
        DOORS[door](samples, plan=rules)


def test_the_global_batch_is_bounded() -> None:
    with pytest.raises(OptionError, match=r"^batch_size \* world_size is too large"):
        LoaderOptions(batch_size=2**31 - 1, world=xloader.World(0, 2))
    with pytest.raises(OptionError, match=r"^world_size is too large"):
        LoaderOptions(world=xloader.World(0, 2**40))


def test_choices_that_are_arrays_are_refused() -> None:
    for name in ("output", "on_error", "processes"):
        with pytest.raises(OptionError):
            LoaderOptions(**{name: np.array(["torch", "numpy"])})


def test_divisors_of_large_numbers_take_no_loop_over_all() -> None:
    assert divisors_of(2**30) == [2**n for n in range(31)]
    assert divisors_of(2**31 - 1) == [1, 2**31 - 1]
    assert [divisors_of(n) for n in (1, 12, 36)] == [
        [1], [1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 9, 12, 18, 36],
    ]  # fmt: skip


@pytest.mark.parametrize("value", [5, "f", []])
def test_what_cannot_be_called(samples: Samples, value: Any) -> None:
    torch = pytest.importorskip("xloader.torch")
    from xloader.xbatcher.torch_datasets import GeneratorMapDataset

    generator = xloader.xbatcher.BatchGenerator(xr.DataArray(np.arange(6.0), dims="x"), {"x": 2})
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("collate_fn", lambda: samples.loader(collate_fn=value)),
        ("collate_fn", lambda: torch.data_loader(samples, collate_fn=value)),
        ("worker_init_fn", lambda: torch.data_loader(samples, worker_init_fn=value)),
        ("transform", lambda: torch.data_loader(samples, transform=value)),
        ("transforms", lambda: torch.MapDataset(samples, transforms=value)),
        ("target_transform", lambda: torch.IterableDataset(samples, target_transform=value)),
        ("make", lambda: xloader.Rollout(value)),
        ("transform", lambda: GeneratorMapDataset(generator, transform=value)),
        (
            "target_transform",
            lambda: GeneratorMapDataset(generator, generator, target_transform=value),
        ),
    ]
    for name, attempt in attempts:
        with pytest.raises(OptionError, match=f"^{name} cannot be called.*To mend it"):
            attempt()
    with pytest.raises(OptionError, match="a callable"):
        samples.map(value)


@pytest.mark.parametrize("value", ["2", None, np.nan, True, 1.5, -1, pytest.param(HUGE, id="huge")])
def test_numbers_of_workers(samples: Samples, value: Any) -> None:
    torch = pytest.importorskip("xloader.torch")
    for attempt in (
        lambda: torch.data_loader(samples, num_workers=value),
        lambda: torch.ChunkSampler(samples, num_workers=value),
        lambda: samples.explain([0], cache="lru", num_workers=value),
    ):
        with pytest.raises(OptionError, match=r"^num_workers is .*Given: "):
            attempt()


def test_threads_and_elements_of_the_other_doors(samples: Samples) -> None:
    torch = pytest.importorskip("xloader.torch")
    for value in (0, 2**40, "2"):
        with pytest.raises(OptionError, match=r"^threads is "):
            torch.MapDataset(samples, threads=value)
    for value in (0, 1.5, "2", 2**70):
        with pytest.raises(OptionError, match=r"^num_elements is "):
            torch.batch_of(num_elements=value)
    assert torch.batch_of(nbytes="1024PiB")(samples) == 2**31 - 1


@pytest.mark.parametrize("index", [2**70, None, np.nan, 1.5, "2", [1.5], ["2"], [None], [2**70]])
def test_ids_that_are_none(samples: Samples, index: Any) -> None:
    torch = pytest.importorskip("xloader.torch")
    with pytest.raises(SampleIndexError, match="not sample ids"):
        torch.MapDataset(samples)[index]


def test_an_epoch_beyond_all_numbers(samples: Samples) -> None:
    with pytest.raises(OptionError, match="no such epoch"):
        samples.loader(output="numpy").set_epoch(HUGE)
    with pytest.raises(OptionError, match="more than any machine has"):
        parse_nbytes(HUGE)
