"""A release of zarr with other internals is still read, through zarr's own indexing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from tests.sources import kinds
from xloader.sources import zarr_adapter
from xloader.sources.zarr.parse_codecs import chain_of, sharding_of
from xloader.testing import write_store

# The script imports each zarr module first and hides it later, because zarr itself needs it.
SCRIPT = """
import pickle, shutil, sys, warnings
from pathlib import Path
import numpy as np, xarray as xr, zarr, zarr.buffer
from zarr.storage import LocalStore, ZipStore

gone = sys.argv[2]
kept = sys.modules.pop(gone)
sys.modules[gone] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import xloader
    from xloader.errors import EnvironmentWarning
    from xloader.sources.open.open_source import open_source
    sys.modules[gone] = kept
    assert not caught, [str(one.message) for one in caught]

    root = Path(sys.argv[1])
    expected = {name: np.load(root / f"{name}.npy") for name in ("t", "m", "flag")}
    shutil.make_archive(str(root / "plain.zarr"), "zip", root / "plain.zarr")
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
        with samples.loader(batch_size=3, shuffle=True, memory="1MiB", output="numpy") as loader:
            ids = []
            for batch in loader:
                for row, index in enumerate(batch.ids.tolist()):
                    np.testing.assert_array_equal(batch.t[row], expected["t"][index : index + 2])
                    flags = expected["flag"][index : index + 2]
                    np.testing.assert_array_equal(batch.flag[row], flags)
                ids += batch.ids.tolist()
        assert sorted(ids) == list(range(10)), kind
        assert loader.report().num_reads == loader.explain().num_reads, kind
        if kind in ("path", "zip", "shards"):
            copy = pickle.loads(pickle.dumps(samples))
            np.testing.assert_array_equal(copy[3][0], samples[3][0])
    try:
        open_source(root / "plain.zarr", on_missing="raise")
    except xloader.errors.UnsupportedDataError as error:
        assert "cannot detect absent chunks" in str(error), error
    else:
        raise AssertionError("absent chunks would go unnoticed")
ours = [one for one in caught if issubclass(one.category, EnvironmentWarning)]
assert len(ours) == 1, [str(one.message) for one in caught]
print(ours[0].filename, "|", ours[0].message)
"""


@pytest.mark.parametrize("gone", ["zarr.core.sync", "zarr.buffer"])
def test_everything_opens_through_zarrs_own_indexing_with_one_warning(tmp_path: Path, gone: str):
    dataset = kinds.numeric(kinds.make_dataset())
    write_store(dataset, kinds.CHUNKS, tmp_path / "plain.zarr")
    write_store(dataset, kinds.CHUNKS, tmp_path / "v2.zarr", zarr_format=2)
    kinds.sharded(tmp_path, kinds.make_dataset())
    (tmp_path / "s.zarr").rename(tmp_path / "shards.zarr")
    for name in ("t", "m", "flag"):
        np.save(tmp_path / f"{name}.npy", dataset[name].to_numpy())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path), gone],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    told = run.stdout.splitlines()[-1]
    assert told.startswith(str(script))
    assert f"zarr {zarr.__version__} is not known" in told
    assert "absent from a store are not noticed" in told


OTHERS = {
    "no setting": "zarr.config.config['array'].pop('rectilinear_chunks', None)",
    "setting refused": "zarr.config.deprecations['array.rectilinear_chunks'] = None",
    "zip files read otherwise": """
async def get(store, key, prototype, byte_range=None):
    return store._other(key, prototype, byte_range)
zip_store = zarr.storage.ZipStore
zip_store._other, zip_store.get = zip_store._get, get
del zip_store._get
""",
}
OTHER = """
import shutil, sys
from pathlib import Path
import numpy as np, zarr
root = Path(sys.argv[1])
expected = np.load(root / "t.npy")
shutil.make_archive(str(root / "plain.zarr"), "zip", root / "plain.zarr")
CHANGE
import xloader
for name in ("plain.zarr", "plain.zarr.zip"):
    samples = xloader.open(root / name, variables=["t"]).window(time=2, stride=1)
    with samples.loader(batch_size=3, memory="1MiB", output="numpy") as loader:
        for batch in loader:
            for row, index in enumerate(batch.ids.tolist()):
                np.testing.assert_array_equal(batch.t[row], expected[index : index + 2])
"""


@pytest.mark.parametrize("change", OTHERS)
def test_what_else_a_release_may_change_is_no_error(tmp_path: Path, change: str):
    dataset = kinds.numeric(kinds.make_dataset())
    write_store(dataset, kinds.CHUNKS, tmp_path / "plain.zarr")
    np.save(tmp_path / "t.npy", dataset["t"].to_numpy())
    script = tmp_path / "script.py"
    script.write_text(OTHER.replace("CHANGE", OTHERS[change]))
    run = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_metadata_of_another_form_are_left_to_zarr():
    for metadata in (SimpleNamespace(zarr_format=3), SimpleNamespace(zarr_format=2)):
        assert chain_of(metadata, (4,)) is None
        assert sharding_of(metadata, (2,)) is None


def test_this_zarr_is_known():
    assert zarr_adapter.is_known()
    zarr_adapter.warn_of_unknown_release()
