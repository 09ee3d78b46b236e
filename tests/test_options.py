from __future__ import annotations

import os
from typing import Any

import pytest

from xloader.core.nbytes import parse_nbytes
from xloader.core.options import LoaderOptions, OnDevice, PlanRules, make_options
from xloader.core.ranks import World
from xloader.errors import OptionError


def options(**changes: Any) -> LoaderOptions:
    return LoaderOptions(**{"batch_size": 8, "world": World(), **changes})


@pytest.mark.parametrize(
    ("changes", "given", "allowed", "remedy"),
    [
        pytest.param(
            {"output": "mxnet"}, "'mxnet'", "'torch' or 'numpy' or 'jax' or 'cupy'", "", id="output"
        ),
        pytest.param({"on_error": "fill"}, "'fill'", "'raise' or 'skip'", "", id="on_error"),
        pytest.param({"processes": -1}, "-1", ">= 0", "", id="no processes"),
        pytest.param({"memory": "-1GiB"}, "'-1GiB'", '"512MiB"', "", id="memory below nothing"),
        pytest.param(
            {"plan": PlanRules(lanes=6)},
            "lanes=6, a global batch of 8",
            "one of [1, 2, 4, 8]",
            "pass plan=PlanRules(lanes=...) with one of these",
            id="lanes do not divide the batch",
        ),
    ],
)
def test_refused(changes: dict[str, Any], given: str, allowed: str, remedy: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(**changes)
    error = caught.value
    assert str(error.given) == given
    assert allowed in str(error.allowed)
    assert remedy in error.remedy
    message = str(error)
    assert message.startswith(error.what)
    assert f"Given: {given}. Allowed: " in message


@pytest.mark.parametrize("name", ["device", "transform", "out"])
def test_only_tensors_go_to_a_device(name: str) -> None:
    device = OnDevice(**{name: "cuda" if name == "device" else len})
    with pytest.raises(OptionError, match=f"^{name} is for tensors of PyTorch") as caught:
        options(device=device, output="numpy")
    assert "output='numpy'" in str(caught.value.given)
    assert caught.value.remedy == f'pass output="torch", or leave {name}= out'


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"random": True}, "random=True has no function"),
        ({"transform": 3}, "transform cannot be called"),
        ({"dtype": "float64"}, "dtype"),
        ({"transform": len, "random": 2}, "random"),
    ],
)
def test_what_no_device_takes(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=f"^{what}"):
        OnDevice("cpu", **changes)


@pytest.mark.parametrize(
    ("name", "given", "named"),
    [
        ("lanes", 4, r"plan=xloader.PlanRules\(lanes=...\)"),
        ("spread", 4, r"plan=xloader.PlanRules\(spread=...\)"),
        ("max_amplification", 2, r"plan=xloader.PlanRules\(max_amplification=...\)"),
        ("rank", 0, r"world=xloader.World\(rank, world_size\)"),
        ("world_size", 2, r"world=xloader.World\(rank, world_size\)"),
        ("output_dtype", "float16", r"device=xloader.OnDevice\(dtype=...\)"),
        ("device_transform", len, r"device=xloader.OnDevice\(transform=...\)"),
        ("out", (), r"device=xloader.OnDevice\(out=...\)"),
        ("read_timeout", 3, r"xloader.open\(..., read_timeout=...\)"),
        ("max_retries", 3, r"xloader.open\(..., max_retries=...\)"),
    ],
)
def test_who_gives_a_part_of_a_group_is_told_the_group(name: str, given: Any, named: str) -> None:
    with pytest.raises(
        OptionError, match=f"a loader has no option '{name}'.*To mend it: .*{named}"
    ):
        make_options(**{name: given})


def test_a_device_alone_is_as_good_as_in_its_group() -> None:
    assert options(device="cpu").on_device == options(device=OnDevice("cpu")).on_device
    assert options(device="cpu").on_device.device == "cpu"
    assert options(device=OnDevice(dtype="float16"), output="numpy").on_device.dtype == "float16"


def test_a_world_is_of_its_kind() -> None:
    with pytest.raises(OptionError, match=r"^world .*Given: .*xloader\.World\("):
        options(world=(0, 2))


def test_the_world_decides_batch_and_lanes() -> None:
    found = options(world=World(1, 4), plan=PlanRules(lanes=8))
    assert found.ranks == World(1, 4)
    assert (found.global_batch, found.num_lanes, found.carried_lanes) == (32, 8, 8)
    # Without lanes, each rank has one and carries no other.
    found = options(world=World(2, 4))
    assert (found.num_lanes, found.carried_lanes) == (4, 1)


def test_threads_are_the_cores_unless_asked_otherwise() -> None:
    assert options(threads=3).num_threads == 3
    assert options().num_threads == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("memory", "nbytes"),
    [("2GiB", 2 << 30), ("2GB", 2 * 10**9), ("1.5 MiB", 3 << 19), (4096, 4096), ("77", 77)],
)
def test_memory_as_text_or_number(memory: int | str, nbytes: int) -> None:
    assert parse_nbytes(memory) == nbytes
    assert options(memory=memory).memory_nbytes == nbytes
