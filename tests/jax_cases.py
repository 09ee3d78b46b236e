"""Loaders of JAX arrays. `tests.test_other_arrays` runs the functions without PyTorch."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import Batch, Samples
from xloader.engine.buffers import ArrayKind, BatchPool
from xloader.errors import OptionError, UnsupportedDataError
from xloader.tensors.convert import jax_maker
from xloader.testing import write_store


def make_samples(dtype: str = "f4") -> Samples:
    rng = np.random.default_rng(4)
    values = (280 + 10 * rng.random((60, 37))).astype(dtype)
    return xloader.open(write_store(xr.Dataset({"t": (("time", "x"), values)}), {"t": (8, 37)}))


def kept_batches_do_not_change() -> None:
    samples = make_samples().window(time=3, stride=1)
    samples = samples.field("a", "t").field("b", "t", time=1).field("c", "t", time=slice(0, 2))
    options = {"batch_size": 4, "memory": "64KiB", "seed": 5}
    for epochs in range(3):
        with (
            samples.loader(output="jax", **options) as loader,
            samples.loader(output="numpy", **options) as plain,
        ):
            loader.set_epoch(epochs)
            plain.set_epoch(epochs)
            # Every second batch is dropped at once, so that its memory is used again.
            kept = [batch for number, batch in enumerate(loader) if number % 2]
            expected = [
                (batch.ids, [array.copy() for array in batch])
                for number, batch in enumerate(plain)
                if number % 2
            ]
        gc.collect()
        assert len(kept) == len(expected) > 5
        for batch, (ids, arrays) in zip(kept, expected, strict=True):
            assert batch.ids.tolist() == ids.tolist()
            for array, own in zip(batch, arrays, strict=True):
                assert isinstance(array, jax.Array)
                np.testing.assert_array_equal(np.asarray(array), own, strict=True)


def arrays_share_the_memory_of_the_loader() -> None:
    samples = make_samples().window(time=2, stride=1)
    with samples.loader(output="jax", batch_size=4) as loader:
        for batch in loader:
            address = batch.t.unsafe_buffer_pointer()
            # The loader's buffers begin at multiples of 64, and JAX's own need not be shared.
            view = np.asarray(batch.t)
            assert view.ctypes.data == address
            assert address % 64 == 0


def memory_comes_back_when_jax_frees_it() -> None:
    kinds = [ArrayKind((4, 64), np.dtype("f4"))]
    pool = BatchPool(kinds, 2)
    make = jax_maker({})
    array = make(pool.take(kinds)[0])
    double = jax.jit(lambda values: values * 2)(array)
    address = array.unsafe_buffer_pointer()
    # JAX still refers to the buffer, so that another one is taken.
    assert pool.take(kinds)[0].ctypes.data != address
    double.block_until_ready()
    del array, double
    gc.collect()
    addresses = {own.ctypes.data for own in [pool.take(kinds)[0] for _ in "ab"]}
    assert address in addresses


def dtypes_are_kept() -> None:
    rng = np.random.default_rng(4)
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "?"]
    ds = xr.Dataset({f"v{n}": ("time", rng.random(20).astype(k)) for n, k in enumerate(kinds)})
    samples = xloader.open(ds).window(time=2)
    for mapped in (samples, samples.map(lambda ds: ds.isel(time=slice(None, None, -1)))):
        with (
            mapped.loader(output="jax", batch_size=3, shuffle=False) as loader,
            mapped.loader(output="numpy", batch_size=3, shuffle=False) as plain,
        ):
            for batch, expected in zip(loader, plain, strict=True):
                for array, own in zip(batch, expected, strict=True):
                    np.testing.assert_array_equal(np.asarray(array), own, strict=True)


def values_that_cannot_be_written_are_copied() -> None:
    samples = make_samples().window(time=2)
    samples = samples.map(lambda ds: ds.assign(one=xr.DataArray(1.0).broadcast_like(ds["t"])))
    with samples.loader(output="jax", batch_size=3) as loader:
        for batch in loader:
            assert float(batch.one.sum()) == batch.one.size


def narrow_floats() -> None:
    samples = make_samples().window(time=2).normalize({"t": (285.0, 3.0)})
    for name in ("float16", "bfloat16", "float32"):
        with (
            samples.loader(
                output="jax", batch_size=3, device=xloader.OnDevice(dtype=name)
            ) as loader,
            samples.loader(output="jax", batch_size=3) as plain,
        ):
            for batch, expected in zip(loader, plain, strict=True):
                assert batch.t.dtype == jnp.dtype(name)
                assert (batch.t == expected.t.astype(name)).all()


def wide_numbers() -> None:
    samples = xloader.open(xr.Dataset({"n": ("time", np.arange(2**40, 2**40 + 9))})).window(time=1)
    with make_samples("f8").window(time=2).loader(output="jax", batch_size=3) as loader:
        assert next(iter(loader)).t.dtype == jnp.float32
    with pytest.raises(OptionError, match=r"fields \['n'\] with int64.*jax_enable_x64"):
        samples.loader(output="jax")
    with (
        jax.enable_x64(True),
        samples.loader(output="jax", batch_size=9, shuffle=False) as loader,
    ):
        (batch,) = loader
        assert batch.n.flatten().tolist() == list(range(2**40, 2**40 + 9))


def other_options() -> None:
    samples = make_samples().window(time=2, stride=1)
    with pytest.raises(OptionError, match=r"jax.device_put\(batch.as_dict\(\), device\)"):
        samples.loader(output="jax", device="cpu")
    with samples.loader(output="jax", batch_size=3, on_nan="raise") as loader:
        (batch, *_) = loader
    moved = jax.device_put(batch, jax.devices()[0])
    assert moved.t.devices() == {jax.devices()[0]}
    with pytest.raises(UnsupportedDataError, match=r"jax\.device_put"):
        batch.to("cpu")

    def stack(rows: list[tuple[jax.Array, ...]]) -> jax.Array:
        return jnp.stack([t for (t,) in rows])

    with samples.loader(output="jax", batch_size=3, shuffle=False, collate_fn=stack) as loader:
        assert next(iter(loader)).shape == (3, 2, 37)
    loader = samples.loader(output="jax", batch_size=3)
    state = loader.state_dict()
    with pickle.loads(pickle.dumps(loader)) as other:
        other.load_state_dict(state)
        assert isinstance(next(iter(other)).t, jax.Array)


def the_page_trains() -> None:
    from tests.test_docs import run_blocks

    page = Path(__file__).resolve().parents[1] / "docs" / "guides" / "jax.md"
    names = run_blocks(str(page), page.read_text("utf-8"))
    assert len(jax.devices()) == 2
    assert len(names["fields"]["inputs"].sharding.device_set) == 2
    losses = names["losses"]
    assert losses[-1] < 0.05 * losses[0], losses


def batches_have_labels_and_can_be_denormalized() -> None:
    plain = make_samples().window(time=3)
    samples = plain.normalize({"t": (280.0, 10.0)})
    for dtype in (None, "bfloat16"):
        with samples.loader(
            output="jax", batch_size=4, device=xloader.OnDevice(dtype=dtype)
        ) as loader:
            batch = next(iter(loader))
        frame, wanted = batch.to_xarray(), samples.to_xarray(batch.ids)
        assert frame.t.dtype == np.float32
        xr.testing.assert_identical(frame.coords.to_dataset(), wanted.coords.to_dataset())
        np.testing.assert_allclose(frame.t, wanted.t, rtol=1e-2 if dtype else 0)
        found = samples.denormalize(batch.t, "t")
        assert isinstance(found, jax.Array)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(
            np.asarray(found), plain[batch.ids].t, rtol=1e-2 if dtype else 1e-6
        )


def mosaics_take_predictions() -> None:
    plain = make_samples().window(time=3)
    values = jnp.asarray(plain[:].t).astype(jnp.bfloat16)
    with plain.mosaic() as out:
        out.write(jnp.arange(len(plain)), values)
    assert out.dataset.t.dtype == np.float32
    read = plain.to_xarray(slice(None)).t.to_numpy().reshape(60, 37)
    np.testing.assert_allclose(out.dataset.t, read, rtol=2**-8)


def functions_are_compiled_once_for_all_batches() -> None:
    traced = []

    @jax.jit
    def double(batch: Batch) -> tuple[Batch, jax.Array]:
        traced.append(batch.ids)
        return type(batch)(2 * array for array in batch), batch.inputs.mean()

    samples = make_samples().window(time=2, stride=1).inputs("t", time=0).targets("t", time=1)
    with samples.loader(batch_size=5, drop_last=True, output="jax", memory="64KiB") as loader:
        batches = list(loader)
    doubled = [double(batch)[0] for batch in batches]
    assert len(batches) == 11
    assert traced == [None]
    assert len({jax.tree.structure(batch) for batch in batches}) == 1
    for batch, again in zip(batches, doubled, strict=True):
        mapped = jax.tree.map(lambda array: 2 * array, batch)
        for found in (again, mapped):
            assert (found.names, found.ids, found.num_samples) == (batch.names, None, 5)
            assert all(map(np.array_equal, found, [2 * np.asarray(array) for array in batch]))
    (path, _), _ = jax.tree_util.tree_flatten_with_path(batch)[0]
    assert jax.tree_util.keystr(path) == ".inputs"
