"""The compiled library: which is used, how it is built, and what NumPy does as well."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.without_library import without_library
from xloader.compiled.library import FOLDER, LIBRARY, load_library
from xloader.core.axis import Axis
from xloader.core.counter_rng import bijection
from xloader.core.footprint import Group
from xloader.engine.buffers import LeasedPool
from xloader.engine.overlaps import HitFinder
from xloader.testing import write_store

ROOT = Path(__file__).resolve().parents[1]
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    if load_library()[0] is None:
        pytest.skip("the library was not compiled")


def test_explain_says_which_is_used() -> None:
    values = np.zeros((8, 4), "f4")
    packed = values.astype("f2"), {"scale_factor": 0.5}
    ds = xr.Dataset({"a": (("time", "x"), values), "b": (("time", "x"), *packed)})
    samples = xloader.open(write_store(ds, {"a": (2, 4), "b": (2, 4)})).window(time=2)
    assert samples.explain().gather == (
        "by NumPy, which holds Python's lock, to convert the numbers of b"
    )
    alone = xloader.open(ds[["a"]]).window(time=2)
    assert alone.explain().gather == "compiled, without Python's lock"
    assert alone.explain(order=[0, 1], cache="lru").gather == "compiled, without Python's lock"
    with without_library():
        assert "NumPy, which holds Python's lock: it is a test" in str(samples.explain())


def test_it_is_switched_off_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLOADER_COMPILED", "0")
    assert load_library.__wrapped__() == (None, "XLOADER_COMPILED=0 is set")


@pytest.mark.parametrize(
    ("content", "source", "reason"),
    [
        (None, b"", "the wheel for any platform, or without a C compiler"),
        (b"made for another machine", b"", "does not load"),
        ("own", b"another release", "of another release; install xloader again"),
    ],
)
def test_libraries_that_are_not_used(
    content: bytes | str | None, source: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "executor.c").write_bytes(source)
    if content == "own":
        shutil.copy(FOLDER / LIBRARY, tmp_path / LIBRARY)
    elif isinstance(content, bytes):
        (tmp_path / LIBRARY).write_bytes(content)
    found, told = load_library(tmp_path)
    assert found is None
    assert reason in told


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_builds_without_a_compiler_go_on(tmp_path: Path) -> None:
    """The build says why it has no compiled gather, and is no error."""
    pytest.importorskip("hatchling")
    sys.path.insert(0, str(ROOT))
    from hatch_build import _replace, compile_library

    # That the library itself compiles is known where it is there.
    (tmp_path / "own.c").write_text("int one(void) { return 1; }\n")
    assert compile_library(tmp_path, tmp_path / "a.so") == ""
    assert (tmp_path / "a.so").exists()
    with mock.patch.dict("os.environ", {"CC": "no-such-compiler"}):
        assert "no-such-compiler" in compile_library(tmp_path, tmp_path / "b.so")
    (tmp_path / "own.c").write_text("this is not C")
    assert "failed" in compile_library(tmp_path, tmp_path / "c.so")
    assert not (tmp_path / "c.so").exists()
    assert _replace(tmp_path / "d.so", tmp_path / "a.so") == ""
    assert (tmp_path / "d.so").read_bytes() == (tmp_path / "a.so").read_bytes()
    assert _replace(tmp_path / "d.so", None) == ""
    assert not (tmp_path / "d.so").exists()
    assert "no such folder" in _replace(tmp_path / "no such folder" / "d.so", tmp_path / "a.so")


def test_ranks_are_permuted_as_numpy_does() -> None:
    rng = np.random.default_rng(11)
    sizes = np.concatenate([np.arange(1, 60), [10**6 + 3, 2**33 + 1, 2**61 + 5]])
    keys = rng.integers(0, 2**63, len(sizes)).astype(np.uint64)
    which = np.sort(rng.integers(0, len(sizes), 5000))
    ranks = rng.integers(0, 2**62, 5000) % sizes[which]
    found = bijection(keys, sizes, ranks, which)
    with without_library():
        np.testing.assert_array_equal(found, bijection(keys, sizes, ranks, which))


def test_memory_of_hits_is_used_again_once_none_is_left() -> None:
    group = Group((), (Axis(12, 4, range(12)),), (), ("stop",))
    finder = HitFinder(group, ((0, 1, 3),))
    pool, firsts = LeasedPool(1), np.arange(10)[:, None]

    def part() -> Any:
        return finder.find(firsts, pool)[:, 5:]

    first, second = part(), part()
    assert not np.shares_memory(first, second)
    expected, address = first.copy(), first.ctypes.data
    part()
    np.testing.assert_array_equal(first, expected)
    del second, first
    # One of the two was kept, and the pool gives it out again.
    assert part().ctypes.data == address
