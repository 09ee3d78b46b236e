from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from xloader.core.ranks import World, find_world, resolve_world
from xloader.errors import OptionError


def _distributed(*, is_initialized: bool) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: is_initialized,
        get_rank=lambda: 5,
        get_world_size=lambda: 6,
    )


@pytest.fixture(autouse=True)
def _no_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", _distributed(is_initialized=False))


LAUNCH = {"RANK": "1", "WORLD_SIZE": "3"}
STEP = {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, World(0, 1), id="nothing is said: alone"),
        pytest.param(LAUNCH, World(1, 3), id="a launcher's variables"),
        pytest.param(STEP, World(2, 4), id="a step of srun"),
        pytest.param({**STEP, **LAUNCH}, World(1, 3), id="a launcher within a step"),
        pytest.param(
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, World(0, 1), id="a batch script, no step"
        ),
    ],
)
def test_environment(environ: dict[str, str], expected: World) -> None:
    assert resolve_world(environ=environ) == expected


def test_process_group_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", _distributed(is_initialized=True))
    assert resolve_world(environ=LAUNCH) == World(5, 6)
    assert resolve_world(World(0, 2), environ=LAUNCH) == World(0, 2)


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "9")
    assert resolve_world() == World(7, 9)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (0, 0, r"world_size is too small. Given: 0. Allowed: >= 1"),
        (2, 2, r"rank is out of range. Given: 2. Allowed: \[0, 2\)"),
        (-1, 2, r"rank is out of range. Given: -1. Allowed: \[0, 2\)"),
    ],
)
def test_out_of_range(rank: int, world_size: int, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        World(rank, world_size)


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({"RANK": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "zero", "WORLD_SIZE": "2"}, "RANK"),
    ],
)
def test_broken_environment(environ: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError, match=f"variable {name} is not a whole number"):
        resolve_world(environ=environ)


def test_a_world_is_found_only_where_something_tells_it() -> None:
    assert find_world(environ={}) is None
    assert find_world(World(0, 1)) == World(0, 1)
