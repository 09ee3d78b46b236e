"""The compiled gather gives the same batches as NumPy does, whatever the samples."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import xloader
from tests.cases import Case, cases
from xloader import Samples
from xloader.engine import compiled_gather
from xloader.engine.compiled_gather import CompiledCopy, find_library
from xloader.testing import write_store

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.MixingWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.AmplificationWarning"),
    pytest.mark.filterwarnings("ignore::xloader.errors.EmptyEpochWarning"),
]

ROOT = Path(__file__).resolve().parents[1]
HAS_COMPILER = any(map(shutil.which, ("cc", "gcc", "clang")))


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    if find_library() is None:
        pytest.skip("the gather was not compiled")


def with_numpy() -> mock._patch[object]:
    return mock.patch.object(compiled_gather, "find_library", return_value=None)


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


@given(case=cases(), epoch=st.integers(0, 1))
def test_batches_are_those_of_numpy(case: Case, epoch: int) -> None:
    for rank in range(case.world_size):
        with case.loader(rank) as loader, with_numpy(), case.loader(rank) as other:
            for one in (loader, other):
                one.set_epoch(epoch)
            for batch, expected in zip(loader, other, strict=True):
                assert batch.ids.tolist() == expected.ids.tolist()
                for array, reference in zip(batch, expected, strict=True):
                    np.testing.assert_array_equal(array, reference)


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


def test_every_variable_of_the_examples_is_copied_by_it() -> None:
    ds = xr.Dataset({"a": (("time", "x"), np.zeros((8, 4), "f4")), "b": ("time", np.zeros(8))})
    samples = xloader.open(write_store(ds, {"a": (2, 4), "b": (2,)})).window(time=2)
    copied = []
    copy = CompiledCopy.copy

    def counting(self: CompiledCopy, *args: object) -> None:
        copied.append(self.field)
        copy(self, *args)

    with mock.patch.object(CompiledCopy, "copy", counting):
        batches(samples, batch_size=2, memory="1MiB")
    assert set(copied) == {"a", "b"}


def test_explain_says_which_is_used() -> None:
    ds = xr.Dataset({"a": (("time", "x"), np.zeros((8, 4), "f4"))})
    samples = xloader.open(write_store(ds, {"a": (2, 4)})).window(time=2)
    assert "compiled, without Python's lock" in str(samples.explain())
    with with_numpy():
        assert "NumPy, which holds Python's lock: install xloader" in str(samples.explain())


def test_it_is_switched_off_by_an_environment_variable() -> None:
    code = "from xloader.engine.compiled_gather import find_library; print(find_library())"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"XLOADER_COMPILED": "0", "PATH": ""},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert run.stdout.strip() == "None"


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_gather, "_VERSION", -1)
    assert find_library.__wrapped__() is None


def test_a_file_that_is_no_library_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").touch()
    (tmp_path / compiled_gather._NAME).write_bytes(b"made for another machine")
    monkeypatch.setattr(compiled_gather, "__file__", str(tmp_path / "module.py"))
    assert find_library.__wrapped__() is None


@pytest.mark.skipif(not HAS_COMPILER, reason="there is no C compiler")
def test_builds_without_a_compiler_go_on(tmp_path: Path) -> None:
    """The build says why it has no compiled gather, and is no error."""
    pytest.importorskip("hatchling")
    sys.path.insert(0, str(ROOT))
    from hatch_build import compile_library

    source = ROOT / "xloader" / "engine" / "gather_rows.c"
    assert compile_library(source, tmp_path / "a.so") == ""
    assert (tmp_path / "a.so").exists()
    with mock.patch.dict("os.environ", {"CC": "no-such-compiler"}):
        assert "no-such-compiler" in compile_library(source, tmp_path / "b.so")
    broken = tmp_path / "broken.c"
    broken.write_text("this is not C")
    assert "failed" in compile_library(broken, tmp_path / "c.so")
    assert not (tmp_path / "c.so").exists()
