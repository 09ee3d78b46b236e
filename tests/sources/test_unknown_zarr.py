"""A release of zarr with other internals is still read, through zarr's own indexing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.sources import kinds
from xloader.sources import zarr_adapter
from xloader.sources.zarr.parse_codecs import chain_of, sharding_of
from xloader.testing import write_store

SCRIPT = """
import os, pickle, signal, sys, traceback, warnings
from pathlib import Path
import dask.array, numpy as np, xarray as xr, zarr, zarr.buffer
from zarr.storage import LocalStore, ZipStore

root = Path(sys.argv[1])
expected = {name: np.load(root / f"{name}.npy") for name in ("t", "m", "flag")}


def read(samples, names):
    with samples.loader(batch_size=3, shuffle=True, memory="1MiB", output="numpy") as loader:
        num_reads, ids = loader.explain().num_reads, []
        for batch in loader:
            for row, index in enumerate(batch.ids.tolist()):
                for name in names:
                    part = expected[name][index : index + 2]
                    np.testing.assert_array_equal(batch[name][row], part)
            ids += batch.ids.tolist()
        assert sorted(ids) == list(range(10))
        assert loader.report().num_reads == num_reads


def without(gone):
    # zarr itself needs the module, so it is imported first and hidden later.
    kept = sys.modules.pop(gone)
    sys.modules[gone] = None
    import xloader
    from xloader.errors import EnvironmentWarning
    from xloader.sources.open.open_source import open_source
    sys.modules[gone] = kept
    assert not caught, [str(one.message) for one in caught]
    opened = {
        "path": root / "plain.zarr",
        "v2": root / "v2.zarr",
        "shards": root / "shards.zarr",
        "zip": root / "plain.zarr.zip",
        "store": LocalStore(root / "plain.zarr", read_only=True),
        "zip-store": ZipStore(root / "plain.zarr.zip", mode="r"),
        "group": zarr.open_group(root / "plain.zarr", mode="r"),
        "dataset": xr.open_zarr(root / "plain.zarr", chunks=None, consolidated=False),
        "dask": xr.open_zarr(root / "plain.zarr", consolidated=False),
    }
    try:
        from obstore.store import LocalStore as Obstore
        opened["obstore"] = Obstore(str(root / "plain.zarr"))
        import fsspec
        opened["fsspec"] = fsspec.get_mapper(f"file://{root / 'plain.zarr'}")
    except ImportError as missing:
        print("not tried:", missing)
    for kind, what in opened.items():
        samples = xloader.open(what, variables=["t", "m", "flag"]).window(time=2, stride=1)
        source = samples.recipe.source
        for name in expected:
            assert "zarr's own indexing" in source.path_of(name), (kind, source.path_of(name))
        read(samples, ["t", "flag"])
        if kind in ("path", "zip", "shards"):
            copy = pickle.loads(pickle.dumps(samples))
            np.testing.assert_array_equal(copy[3][0], samples[3][0])
    try:
        open_source(root / "plain.zarr", on_missing="raise")
    except xloader.errors.UnsupportedDataError as error:
        assert "cannot detect absent chunks" in str(error), error
    else:
        raise AssertionError("absent chunks would go unnoticed")
    (ours,) = [one for one in caught if issubclass(one.category, EnvironmentWarning)]
    assert ours.filename == sys.argv[0], ours.filename
    assert f"zarr {zarr.__version__} is not known" in str(ours.message)
    assert "absent from a store are not noticed" in str(ours.message)


def read_zip_otherwise():
    zip_store = zarr.storage.ZipStore
    inner = zip_store._get
    del zip_store._get

    async def get(store, key, prototype, byte_range=None):
        return inner(store, key, prototype, byte_range)

    zip_store.get = get


CHANGES = {
    "no setting": lambda: zarr.config.config["array"].pop("rectilinear_chunks", None),
    "setting refused": lambda: zarr.config.deprecations.update({"array.rectilinear_chunks": None}),
    "zip files read otherwise": read_zip_otherwise,
}
# The libraries take seconds to import. Each child imports xloader anew.
for name in ("zarr.core.sync", "zarr.buffer", *CHANGES):
    if not os.fork():
        signal.alarm(60)
        try:
            with warnings.catch_warnings(record=name not in CHANGES) as caught:
                warnings.simplefilter("always" if caught is not None else "default")
                if name in CHANGES:
                    CHANGES[name]()
                    import xloader
                    for path in ("plain.zarr", "plain.zarr.zip"):
                        samples = xloader.open(root / path, variables=["t"])
                        read(samples.window(time=2, stride=1), ["t"])
                else:
                    without(name)
            print("fine:", name, flush=True)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_what_another_release_may_change_is_no_error(tmp_path: Path):
    """Without a module, everything opens through zarr's own indexing, with one warning."""
    dataset = kinds.numeric(kinds.make_dataset())
    sharded = kinds.STORED["zarr-sharded"]
    write_store(dataset, kinds.CHUNKS, tmp_path / "plain.zarr")
    write_store(dataset, kinds.CHUNKS, tmp_path / "v2.zarr", zarr_format=2)
    write_store(dataset, kinds.CHUNKS, tmp_path / "shards.zarr", encoding=sharded)
    shutil.make_archive(str(tmp_path / "plain.zarr"), "zip", tmp_path / "plain.zarr")
    for name in ("t", "m", "flag"):
        np.save(tmp_path / f"{name}.npy", dataset[name].to_numpy())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("fine:") == 5, run.stdout + run.stderr


def test_metadata_of_another_form_are_left_to_zarr():
    for metadata in (SimpleNamespace(zarr_format=3), SimpleNamespace(zarr_format=2)):
        assert chain_of(metadata, (4,)) is None
        assert sharding_of(metadata, (2,)) is None


def test_this_zarr_is_known():
    assert zarr_adapter.is_known()
    zarr_adapter.warn_of_unknown_release()
