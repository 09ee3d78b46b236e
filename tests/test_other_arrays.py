"""Batches of JAX and CuPy arrays, without PyTorch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Samples
from xloader.errors import MissingDependencyError, OptionError

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "tests" / "jax_cases.py"
NAMES = re.findall(r"^def (\w+)\(\) -> None:", CASES.read_text("utf-8"), re.MULTILINE)
PAGE = "the_page_trains"
"""It tells JAX to have two devices, before JAX looks for them."""

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from tests import jax_cases
for name in sys.argv[1:]:
    print(name, flush=True)
    getattr(jax_cases, name)()
assert sys.modules["torch"] is None
"""


@pytest.fixture(name="samples")
def make_samples() -> Samples:
    values = np.arange(80, dtype="f4").reshape(20, 4)
    return xloader.open(xr.Dataset({"t": (("time", "x"), values)})).window(time=2, stride=1)


@pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
@pytest.mark.parametrize("names", [[PAGE], sorted({*NAMES} - {PAGE})], ids=["page", "others"])
def test_jax(names: list[str], tmp_path: Path) -> None:
    # In a process of its own: there PyTorch cannot be imported, and JAX's threads forbid forks.
    command = [sys.executable, "-c", WITHOUT_TORCH, *names]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    subprocess.run(command, cwd=tmp_path, env=env, check=True, timeout=100)


@pytest.mark.parametrize("name", ["jax", "cupy"])
def test_a_library_that_is_missing_is_named(
    samples: Samples, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match="is not installed") as caught:
        samples.loader(output=name)
    assert 'output="numpy"' in str(caught.value)


def test_jax_without_its_cpu_is_refused(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_devices(platform: str) -> list[object]:
        raise RuntimeError(f"Unknown backend {platform}")

    fake: Any = ModuleType("jax")
    fake.devices = no_devices
    fake.config = type("Config", (), {"jax_platforms": "cuda"})
    monkeypatch.setitem(sys.modules, "jax", fake)
    with pytest.raises(OptionError, match="JAX_PLATFORMS=cuda,cpu"):
        samples.loader(output="jax")


def fake_cupy(is_available: bool = True) -> tuple[Any, list[bool]]:
    """A stand-in for CuPy, which cannot be imported without a GPU, and how it was called."""
    calls: list[bool] = []

    def asarray(array: np.ndarray, *, blocking: bool = False) -> np.ndarray:
        calls.append(blocking)
        return np.array(array)

    fake: Any = ModuleType("cupy")
    fake.is_available = lambda: is_available
    fake.asarray = asarray
    return fake, calls


def test_cupy_arrays_are_copied_before_the_memory_is_used_again(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, calls = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    options: dict[str, Any] = {"batch_size": 3, "shuffle": False}
    with (
        samples.loader(output="cupy", **options) as loader,
        samples.loader(output="numpy", **options) as plain,
    ):
        for batch, expected in zip(loader, plain, strict=True):
            np.testing.assert_array_equal(batch.t, expected.t)
    assert calls == [True] * len(plain)


def test_cupy_without_a_gpu_is_refused(samples: Samples, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(is_available=False)[0])
    with pytest.raises(OptionError, match="CuPy finds no GPU"):
        samples.loader(output="cupy")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"output": "cupy", "device": "cuda"}, "cupy.cuda.Device"),
        ({"output": "cupy", "device": xloader.OnDevice(dtype="bfloat16")}, "CuPy has no bfloat16"),
        ({"output": "jax", "device": "cuda"}, "jax.device_put"),
        ({"output": "numpy", "device": "cuda"}, 'pass output="torch"'),
        ({"output": "tensorflow"}, "'torch' or 'numpy' or 'jax' or 'cupy'"),
    ],
)
def test_options_that_do_not_fit_together(
    samples: Samples, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError) as caught:
        samples.loader(**options)
    assert text in str(caught.value)
