"""Batches are trees of their arrays for PyTorch, JAX and optree, whichever is imported first."""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Batch
from xloader.errors import OptionError
from xloader.samples.samples import Samples

LIBRARIES = [name for name in ("torch", "jax", "optree") if find_spec(name)]

CODE = """
import sys
import numpy as np
import xloader

batch = xloader.Batch([np.ones(2), np.zeros(3)], ["x", "y"], np.arange(2))
assert not {"torch", "jax", "optree"} & set(sys.modules)
for name in sys.argv[1:]:
    __import__(name)
    batch = xloader.Batch(list(batch), ["x", "y"], np.arange(2))
    if name == "torch":
        leaves = sys.modules["torch.utils._pytree"].tree_leaves(batch)
    else:
        leaves = sys.modules[name].tree_util.tree_leaves(batch) if name == "jax" else (
            sys.modules[name].tree_leaves(batch, namespace="keras")
        )
    assert all(map(lambda a, b: a is b, leaves, batch)) and len(leaves) == 2, name
"""


@pytest.mark.parametrize("order", [LIBRARIES, LIBRARIES[::-1]], ids="-".join)
def test_in_both_orders_of_imports(order: list[str]) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", CODE, *order], check=True, timeout=100)


@pytest.fixture
def samples() -> Samples:
    values = np.arange(320, dtype=np.float32).reshape(80, 4)
    opened = xloader.open(xr.Dataset({"t": (("time", "x"), values)})).window(time=2, stride=1)
    return opened.inputs("t", time=0).targets("t", time=1)


def assert_rebuilt(actual: Any, expected: Batch) -> None:
    assert isinstance(actual, Batch)
    assert actual.names == expected.names
    assert (actual.ids, actual.is_padding, actual.source, actual.origin) == (None,) * 4
    assert actual.num_samples == expected.num_samples
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(one), 2 * np.asarray(other))


def test_rebuilt_by_its_type(samples: Samples) -> None:
    batch = next(iter(samples.loader(batch_size=4, output="numpy")))
    rebuilt = type(batch)(2 * array for array in batch)
    for again in (rebuilt, pickle.loads(pickle.dumps(rebuilt)), rebuilt.with_arrays(rebuilt)):
        assert_rebuilt(again, batch)
        assert "without ids" in repr(again)
        assert "without ids" in again._repr_html_()
    for ask in (lambda: rebuilt.coords, rebuilt.to_xarray, rebuilt.plot, rebuilt.require_ids):
        with pytest.raises(OptionError, match=r"another library has rebuilt.*ask it before it is"):
            ask()
    assert type(pickle.loads(pickle.dumps(batch))) is type(batch)
    with pytest.raises(OptionError, match=r"do not match. Given: 1 arrays, 2 names"):
        type(batch)([np.zeros(1)])


@pytest.mark.parametrize("fields", [["t"], ["inputs", "targets"]])
def test_rebuilt_as_a_named_tuple(fields: list[str]) -> None:
    batch = Batch([np.full((3, 2), at) for at in range(len(fields))], fields, np.arange(3))
    kind, doubled = type(batch), [2 * array for array in batch]
    for again in (kind(*doubled), kind(doubled), kind(iter(doubled)), kind(tuple(doubled))):
        assert_rebuilt(again, batch)
    if "torch" in LIBRARIES:
        import torch
        from torch.utils.data import default_convert

        tensors = batch.with_arrays(map(torch.from_numpy, batch))
        assert_rebuilt(default_convert(kind(doubled)), tensors)
        # As DistributedDataParallel does for a GPU.
        moved = torch.distributed.utils._to_kwargs((tensors,), {}, torch.device("cpu"), False)
        assert moved[0][0][0].names == batch.names


def test_what_needs_ids_says_why_it_has_none(samples: Samples, tmp_path: Any) -> None:
    batch = next(iter(samples.loader(batch_size=4, output="numpy")))
    rebuilt = type(batch)(batch)
    with pytest.raises(OptionError, match="another library has rebuilt"):
        xloader.RunningStats(samples).update(rebuilt)
    xloader.RunningStats(samples).update(rebuilt, is_padding=np.zeros(4, bool))
    with pytest.raises(OptionError, match="another library has rebuilt"):
        samples.mosaic(tmp_path / "a.zarr").write(rebuilt, rebuilt.targets)
    with pytest.raises(OptionError, match="another library has rebuilt"):
        xloader.torch.Rows(rebuilt)


@pytest.mark.skipif("torch" not in LIBRARIES, reason="PyTorch is not installed")
def test_torch_maps_and_compiles(samples: Samples) -> None:
    import torch
    from torch.utils import _pytree

    def step(batch: Batch) -> Any:
        return (batch.inputs - batch["targets"]).square().sum() + batch.to("cpu")[0].mean()

    counts = torch._dynamo.utils.counters
    counts.clear()
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    loader = samples.loader(batch_size=7, drop_last=True, memory="8KiB")
    batches = list(loader)
    for batch in batches:
        assert compiled(batch) == step(batch)
    assert counts["stats"]["unique_graphs"] == 1
    mapped = _pytree.tree_map(lambda array: 2 * array, batch)
    assert_rebuilt(mapped, batch)
    assert _pytree.tree_structure(batches[0]) == _pytree.tree_structure(mapped)
    assert [_pytree.keystr(path) for path, _ in _pytree.tree_flatten_with_path(batch)[0]] == [
        ".inputs",
        ".targets",
    ]
