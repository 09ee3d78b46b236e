"""The compiled gather gives the same batches as NumPy does, whatever the samples."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from hypothesis import event, given
from hypothesis import strategies as st
from xloader.engine.compiled_gather import CompiledCopy
from xloader.engine.uses import Uses

import xloader
from tests.cases import Case, cases
from xloader import Samples
from xloader.compiled import library as compiled_library
from xloader.compiled.library import FOLDER, LIBRARY, load_library
from xloader.core.axis import Axis, Ends
from xloader.core.counter_rng import bijection
from xloader.core.footprint import Group
from xloader.engine import compiled_gather
from xloader.engine.buffers import ArrayKind, LeasedPool
from xloader.engine.overlaps import HitFinder, Hits
from xloader.testing import write_store

pytestmark = [
    pytest.mark.usefixtures("earlier_engine"),
    pytest.mark.filterwarnings("ignore::xloader.errors.MixingWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.AmplificationWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EmptyEpochWarning"),
]

ROOT = Path(__file__).resolve().parents[1]
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    if load_library()[0] is None:
        pytest.skip("the gather was not compiled")


@contextmanager
def with_numpy() -> Iterator[None]:
    """Nothing is compiled."""
    load = mock.Mock(return_value=(None, "it is a test"))
    with (
        mock.patch.object(compiled_library, "load_library", load),
        mock.patch.object(compiled_gather, "load_library", load),
    ):
        yield


def batches(samples: Samples, **options: object) -> list[list[np.ndarray]]:
    with samples.loader(output="numpy", **options) as loader:
        return [list(batch) for batch in loader]


def assert_same(samples: Samples, **options: object) -> None:
    found = batches(samples, **options)
    with with_numpy():
        expected = batches(samples, **options)
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        for array, reference in zip(own, other, strict=True):
            assert array.dtype == reference.dtype
            np.testing.assert_array_equal(array, reference)


@pytest.fixture(name="copied", scope="module")
def record_copies() -> Iterator[list[str]]:
    """The field of each call of the compiled function."""
    fields: list[str] = []
    copy = CompiledCopy.copy

    def recording(self: CompiledCopy, *args: Any) -> None:
        fields.append(self.field)
        copy(self, *args)

    with mock.patch.object(CompiledCopy, "copy", recording):
        yield fields


@given(case=cases(), epoch=st.integers(0, 1))
def test_batches_are_those_of_numpy(case: Case, epoch: int, copied: list[str]) -> None:
    for rank in range(case.world_size):
        found = []
        for context in (nullcontext(), with_numpy()):
            copied.clear()
            with context, case.loader(rank) as loader:
                loader.set_epoch(epoch)
                found.append([(batch.ids, list(batch)) for batch in loader])
            way = "C" if isinstance(context, nullcontext) else "NumPy"
            event(f"{way}: the compiled function is called: {bool(copied)}")
        assert not copied
        for (ids, arrays), (other_ids, others) in zip(*found, strict=True):
            assert ids.tolist() == other_ids.tolist()
            for array, other in zip(arrays, others, strict=True):
                np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "i4", "f4", "i8", "f8"])
def test_dtypes(dtype: str) -> None:
    values = np.arange(20 * 7 * 5).reshape(20, 7, 5).astype("i8")
    values = values.astype(dtype) if dtype != "?" else values % 3 == 0
    ds = xr.Dataset({"a": (("time", "y", "x"), values)})
    samples = xloader.open(write_store(ds, {"a": (4, 3, 5)})).window(time=3, y=4, stride=2)
    assert_same(samples, batch_size=4, memory="1MiB", threads=2)


@pytest.mark.parametrize("packed", ["i1", "u1", "i2", "u2", "i4"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_packed_numbers(packed: str, dtype: str) -> None:
    values = np.random.default_rng(3).integers(0, 120, (20, 6, 8)).astype(packed)
    attributes = {
        "scale_factor": np.dtype(dtype).type(0.25),
        "add_offset": np.dtype(dtype).type(-3),
        "_FillValue": values.dtype.type(7),
    }
    ds = xr.Dataset({"a": (("time", "y", "x"), values, attributes)})
    samples = xloader.open(write_store(ds, {"a": (4, 3, 8)})).window(time=2, y=4, x=3, stride=1)
    assert_same(samples, batch_size=16, memory="1MiB", on_nan="ignore")


@pytest.mark.parametrize("x", [1, 7, 15, 16, 17, 31, 63, 64, 65, 127, 128, 129, 1024, 1025])
def test_short_lines(x: int) -> None:
    """Lines of so many bytes, copied from several places in turns where there are enough."""
    values = np.random.default_rng(6).integers(0, 256, (3, 11, 1030)).astype(np.uint8)
    ds = xr.Dataset({"a": (("time", "y", "x"), values), "b": (("time", "y", "x"), values[::-1])})
    opened = xloader.open(write_store(ds, {"a": (2, 11, 1030), "b": (2, 11, 1030)}))
    for time, y in ((1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (1, 11), (3, 1), (3, 3), (2, 7)):
        samples = opened.window(time=time, y=y, x=x, stride={"time": 1, "y": 3, "x": 1029 - x or 1})
        assert_same(samples, batch_size=3, memory="1MiB")


@pytest.mark.parametrize("packed", ["i2", "u2"])
@pytest.mark.parametrize("y", [128, 129])
def test_long_rows_of_packed_numbers(packed: str, y: int) -> None:
    """Rows of 64 KiB and more, most of which begin between two multiples of 16 bytes."""
    values = np.random.default_rng(4).integers(0, 2**16, (9, y + 3, 131)).astype(np.uint16)
    attributes = {"scale_factor": np.float32(0.25), "_FillValue": values.view(packed)[0, 0, 0]}
    ds = xr.Dataset({"a": (("time", "y", "x"), values.view(packed), attributes)})
    samples = xloader.open(write_store(ds, {"a": (3, y + 3, 131)}))
    assert_same(samples.window(time=1, y=y), batch_size=3, on_nan="ignore")


def test_a_field_of_variables_with_other_dtypes_and_dimensions() -> None:
    rng = np.random.default_rng(5)
    ds = xr.Dataset(
        {
            "t": (("time", "y", "x"), rng.random((20, 6, 8)).astype("f4")),
            "z": (("time", "level", "y", "x"), rng.random((20, 2, 6, 8))),
            "co2": (("time",), rng.random(20)),
            "land": (("y", "x"), rng.random((6, 8)).astype("f4")),
        }
    )
    chunks = {"t": (3, 6, 8), "z": (4, 1, 3, 8), "co2": (5,), "land": (3, 4)}
    samples = xloader.open(write_store(ds, chunks)).window(time=2, y=4, x=4, stride=2)
    stacked = samples.field("all", "t", "z", "co2", "land").field("later", "t", "land", time=[1])
    assert_same(stacked, batch_size=8, memory="1MiB")


def test_each_variable_is_copied_by_it(copied: list[str]) -> None:
    ds = xr.Dataset({"a": (("time", "x"), np.zeros((8, 4), "f4")), "b": ("time", np.zeros(8))})
    samples = xloader.open(write_store(ds, {"a": (2, 4), "b": (2,)})).window(time=2)
    copied.clear()
    batches(samples, batch_size=2, memory="1MiB")
    assert set(copied) == {"a", "b"}
    copied.clear()
    with with_numpy():
        batches(samples, batch_size=2, memory="1MiB")
    assert not copied


def test_as_many_dimensions_as_an_array_may_have() -> None:
    """The compiled function has room for as many nested loops."""
    sizes = (6, *(1,) * 55, 2, 3)
    ds = xr.Dataset({"a": ([f"d{n}" for n in range(len(sizes))], np.arange(36.0).reshape(sizes))})
    assert_same(xloader.open(ds).window(d0=2, stride=1), batch_size=2, memory="1MiB")


def test_explain_says_which_is_used() -> None:
    values = np.zeros((8, 4), "f4")
    packed = values.astype("i4"), {"scale_factor": 0.5, "_FillValue": np.int32(-1)}
    ds = xr.Dataset({"a": (("time", "x"), values), "b": (("time", "x"), *packed)})
    samples = xloader.open(write_store(ds, {"a": (2, 4), "b": (2, 4)})).window(time=2)
    assert "compiled, without Python's lock; b by NumPy" in str(samples.explain())
    alone = xloader.open(ds[["a"]]).window(time=2)
    assert alone.explain().gather == "compiled, without Python's lock"
    assert alone.explain(order=[0, 1], cache="lru").gather == "compiled, without Python's lock"
    with with_numpy():
        assert "NumPy, which holds Python's lock: it is a test" in str(samples.explain())


def test_it_is_switched_off_by_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLOADER_COMPILED", "0")
    assert load_library.__wrapped__() == (None, "XLOADER_COMPILED=0 is set")


@pytest.mark.parametrize(
    ("content", "source", "reason"),
    [
        (None, b"", "there was no C compiler"),
        (b"made for another machine", b"", "does not load"),
        ("own", b"another release", "of another release; install xloader again"),
    ],
)
def test_libraries_that_are_not_used(
    content: bytes | str | None, source: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "gather_rows.c").write_bytes(source)
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

    assert compile_library(FOLDER, tmp_path / "a.so") == ""
    assert (tmp_path / "a.so").exists()
    with mock.patch.dict("os.environ", {"CC": "no-such-compiler"}):
        assert "no-such-compiler" in compile_library(FOLDER, tmp_path / "b.so")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "broken.c").write_text("this is not C")
    assert "failed" in compile_library(broken, tmp_path / "c.so")
    assert not (tmp_path / "c.so").exists()
    assert _replace(tmp_path / "d.so", tmp_path / "a.so") == ""
    assert (tmp_path / "d.so").read_bytes() == (tmp_path / "a.so").read_bytes()
    assert _replace(tmp_path / "d.so", None) == ""
    assert not (tmp_path / "d.so").exists()
    assert "no such folder" in _replace(tmp_path / "no such folder" / "d.so", tmp_path / "a.so")


class _UsedMemory(LeasedPool):
    """Memory that holds other numbers, as after an earlier use."""

    def take(self, kind: ArrayKind) -> np.ndarray:
        array = super().take(kind)
        array.fill(-7)
        return array


def test_ranks_are_permuted_as_numpy_does() -> None:
    rng = np.random.default_rng(11)
    sizes = np.concatenate([np.arange(1, 60), [10**6 + 3, 2**33 + 1, 2**61 + 5]])
    keys = rng.integers(0, 2**63, len(sizes)).astype(np.uint64)
    which = np.sort(rng.integers(0, len(sizes), 5000))
    ranks = rng.integers(0, 2**62, 5000) % sizes[which]
    found = bijection(keys, sizes, ranks, which)
    with with_numpy():
        np.testing.assert_array_equal(found, bijection(keys, sizes, ranks, which))


@given(
    chunks=st.sampled_from([3, 4, (2, 5, 1, 4), (4, 4, 4)]),
    kept=st.sampled_from([range(12), range(1, 12), range(0, 12, 2), range(2, 12, 5), (0, 1, 4, 7)]),
    span=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 4)),
    second=st.sampled_from([None, (0, 1, 1), (1, 1, 1), (0, 1, 2), (0, 1, 3)]),
    end=st.sampled_from(["stop", "wrap", "pad"]),
)
def test_hits_are_those_of_numpy(
    chunks: int | tuple[int, ...],
    kept: range | tuple[int, ...],
    span: tuple[int, int, int],
    second: tuple[int, int, int] | None,
    end: Ends,
) -> None:
    axis, other = Axis(12, chunks, kept), Axis(6, 2, range(6))
    group = Group((), (axis, None if second is None else other), (), (end, "stop"))
    access = (span, second)
    num_within = axis.size - span[0] - span[1] * (span[2] - 1)
    outside = -2 if end == "pad" else 0
    num_firsts = axis.size if end != "stop" and num_within > 0 else num_within
    along = np.arange(outside, num_firsts + outside)
    firsts = np.stack(np.meshgrid(along, np.arange(4)), -1).reshape(-1, 2)
    # Rows are looked at in pieces, some of which consist of one window now.
    firsts = np.concatenate([firsts, np.repeat(firsts, 600, axis=0)])
    hits, blocks = HitFinder(group, access).find(firsts, _UsedMemory(1))
    assert ((blocks >= 0) & (blocks < group.num_blocks)).all()
    with with_numpy():
        expected, expected_blocks = HitFinder(group, access).find(firsts)
    np.testing.assert_array_equal(blocks, expected_blocks)
    hits.residences[:] = expected.residences[:] = blocks
    np.testing.assert_array_equal(hits.table, expected.table)


def test_memory_of_hits_is_used_again_once_none_is_left() -> None:
    group = Group((), (Axis(12, 4, range(12)),), (), ("stop",))
    finder = HitFinder(group, ((0, 1, 3),))
    pool, firsts = LeasedPool(1), np.arange(10)[:, None]

    def part() -> Hits:
        hits, _ = finder.find(firsts, pool)
        return hits.cut(np.array([0, 5, 10]))[1]

    first, second = part(), part()
    assert not np.shares_memory(first.table, second.table)
    expected, address = first.table.copy(), first.table.ctypes.data
    part()
    np.testing.assert_array_equal(first.table, expected)
    del second, first
    # One of the two was kept, and the pool gives it out again.
    assert part().table.ctypes.data == address


def test_rows_are_counted_as_numpy_does() -> None:
    """Blocks are dropped at the same time, whichever way rows are counted."""
    values = np.arange(40 * 12 * 12, dtype="f4").reshape(40, 12, 12)
    ds = xr.Dataset({"a": (("time", "y", "x"), values)})
    samples = xloader.open(write_store(ds, {"a": (4, 5, 5)})).window(time=2, y=4, x=4, stride=2)
    count_down, every = Uses.count_down, []
    for context in (nullcontext(), with_numpy()):
        dropped: list[int] = []

        def recording(self: Uses, *args: Any, dropped: list[int] = dropped) -> list[int]:
            over = count_down(self, *args)
            dropped.extend(over)
            return over

        with context, mock.patch.object(Uses, "count_down", recording):
            batches(samples, batch_size=8, memory="24KiB", threads=1)
        assert len(set(dropped)) == len(dropped)
        every.append(sorted(dropped))
    assert every[0] == every[1] != []
