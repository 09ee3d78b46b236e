"""Folders of classes: what is listed, that each file is opened once, and files that do not fit."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader import ClassSamples
from xloader.errors import (
    ChunkError,
    CorruptChunkError,
    MissingDependencyError,
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    UnknownNameError,
    UnsupportedDataError,
    XloaderError,
)
from xloader.sources.base import Read
from xloader.sources.open import class_source
from xloader.sources.open.class_source import list_classes
from xloader.sources.stores.file_openers import FileOpener

SIZES = {"calm": 5, "front": 3, "storm": 8}


def scene(number: int, shape: tuple[int, int] = (4, 6)) -> xr.Dataset:
    values = 100 * number + np.arange(np.prod(shape), dtype="f4").reshape(shape)
    return xr.Dataset(
        {
            "t": (("y", "x"), values, {"units": "K"}),
            "wind": (("y", "x", "part"), np.stack([values, -values], -1).astype("i2")),
            "height": ((), np.float32(number)),
        },
        {"y": np.arange(shape[0]) + number, "lat": (("y", "x"), values)},
    )


def write(path: Path, dataset: xr.Dataset) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".nc", ".h5"):
        dataset.to_netcdf(path, engine="h5netcdf" if path.suffix == ".h5" else "netcdf4")
    else:
        encoding = {"t": {"chunks": (3, 4)}}
        dataset.to_zarr(path, zarr_format=3, consolidated=False, encoding=encoding)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of files that are written once, of which each test has a copy."""
    root, number = tmp_path_factory.mktemp("kept"), 0
    for name, count in SIZES.items():
        for own in range(count):
            write(root / name / f"scene_{own}.nc", scene(number))
            number += 1
    return root


@pytest.fixture
def root(kept: Path, tmp_path: Path) -> Path:
    return shutil.copytree(kept, tmp_path / "data")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count how often each file is opened."""
    counter: Counter[str] = Counter()
    before = FileOpener.__call__
    zarr_before = class_source.open_source

    def opens(self: FileOpener) -> xr.Dataset:
        counter[Path(self.path).name] += 1
        return before(self)

    def opens_zarr(path: str, **kwargs: object) -> object:
        counter[Path(path).name] += 1
        return zarr_before(path, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(FileOpener, "__call__", opens)
    monkeypatch.setattr(class_source, "open_source", opens_zarr)
    return counter


def plain(root: Path) -> list[tuple[str, int, xr.Dataset]]:
    """Return what ``ImageFolder`` would list: path, class and values."""
    found = []
    for code, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
        for path in sorted(folder.iterdir()):
            found.append((f"{folder.name}/{path.name}", code, xr.load_dataset(path)))
    return found


def test_samples_are_the_files(root: Path) -> None:
    samples = xloader.open_classes(root)
    assert isinstance(samples, ClassSamples)
    assert samples.classes == ("calm", "front", "storm")
    assert samples.class_to_idx == {"calm": 0, "front": 1, "storm": 2}
    assert samples.fields == ("t", "wind", "height", "label")
    assert samples.shapes == {"t": (4, 6), "wind": (4, 6, 2), "height": (), "label": ()}
    assert len(samples) == 16
    for index, (path, code, dataset) in enumerate(plain(root)):
        t, wind, height, label = samples[index]
        np.testing.assert_array_equal(t, dataset.t)
        np.testing.assert_array_equal(wind, dataset.wind)
        assert (height, label) == (dataset.height, code)
        assert wind.dtype == np.int16
        assert label.dtype == np.int64
        assert str(samples.positions([index])["file_label"].values[0]) == path
    with samples.loader(batch_size=4, shuffle=False, output="numpy") as loader:
        labelled = next(iter(loader)).to_xarray()
    assert labelled["file_label"].values.tolist() == [path for path, _, _ in plain(root)[:4]]
    frame = samples.to_xarray(7)
    assert frame["file"].item() == plain(root)[7][0]
    assert frame["class"].item() == "front"


@pytest.mark.parametrize("options", [{}, {"processes": 2, "shuffle": False}])
def test_an_epoch_reads_each_file_once(
    root: Path, opened: Counter[str], options: dict[str, object]
) -> None:
    samples = xloader.open_classes(root).field("image", "t").field("wind", "wind")
    assert opened == {"scene_0.nc": 1}
    opened.clear()
    expected = plain(root)
    with samples.loader(batch_size=6, output="numpy", memory="8MiB", seed=2, **options) as loader:
        told, seen = loader.explain(), []
        for batch in loader:
            for row, number in enumerate(batch.ids.tolist()):
                seen.append(number)
                _, code, dataset = expected[number]
                np.testing.assert_array_equal(batch.image[row, 0], dataset.t)
                np.testing.assert_array_equal(batch.wind[row], dataset.wind)
                assert batch.label[row] == code
        report = loader.report()
    assert sorted(seen) == list(range(16))
    assert (seen == sorted(seen)) == (options.get("shuffle") is False)
    assert told.num_reads == report.num_reads == 2 * 16
    assert report.read_amplification == 1.0
    if "processes" not in options:
        assert opened.total() == 16


def test_kinds_of_files_are_mixed(tmp_path: Path, opened: Counter[str]) -> None:
    names = ["a/x.zarr", "a/deep/er/y.h5", "a/deep/z.nc", "b/bare", "b/x.nc", "b/.hidden.nc"]
    for number, name in enumerate(names):
        write(tmp_path / name, scene(number))
    (tmp_path / "b" / "notes.txt").write_text("x")
    (tmp_path / "b" / "plot.png").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "readme.md").write_text("x")
    samples = xloader.open_classes(tmp_path, variables="t")
    listed = [str(path) for path in samples.coords["file"].values]
    # Files of a folder come before those of the folders in it.
    assert listed == ["a/x.zarr", "a/deep/z.nc", "a/deep/er/y.h5", "b/bare", "b/x.nc"]
    assert samples.classes == ("a", "b")
    text = "left out: 2 files of other kinds (1 .txt, 1 .png) and 1 file beside the class folders"
    assert text in str(samples)
    assert text in str(samples.explain())
    assert opened == {"x.zarr": 1}
    opened.clear()
    with samples.loader(batch_size=2, output="numpy", shuffle=False) as loader:
        values = np.concatenate([batch.t for batch in loader])
    for row, number in zip(values, [0, 2, 1, 3, 4], strict=True):
        np.testing.assert_array_equal(row, scene(number).t)
    assert opened == {"x.zarr": 1, "z.nc": 1, "y.h5": 1, "bare": 1, "x.nc": 1}
    only = xloader.open_classes(tmp_path, extensions=[".NC"], variables="t")
    assert len(only) == 2


def test_selections_splits_and_rare_classes(root: Path) -> None:
    samples = xloader.open_classes(root).inputs("t")
    parts = samples.split({"train": 0.75, "valid": 0.25}, groups="file", seed=1)
    files = [
        {str(path) for path in part.positions(range(len(part)))["file_label"].values}
        for part in parts.values()
    ]
    assert not files[0] & files[1]
    assert len(files[0] | files[1]) == 16
    assert [len(own) for own in files] == [12, 4]
    assert isinstance(parts["train"], ClassSamples)
    storms = samples.select(np.flatnonzero([code == 2 for _, code, _ in plain(root)]))
    assert {int(storms[i][1]) for i in range(len(storms))} == {2}
    balanced = samples.weighted(balance="label", num_samples=48)
    with balanced.loader(batch_size=8, output="numpy") as loader:
        codes = np.concatenate([batch.label for batch in loader])
    assert np.bincount(codes).tolist() == [16, 16, 16]
    scaled = samples.normalize({"t": (100.0, 2.0)}).map(lambda ds: ds.assign(inputs=ds.inputs + 1))
    np.testing.assert_allclose(scaled[3][0][0], (scene(3).t - 100) / 2 + 1)
    assert scaled.classes == samples.classes


def test_a_part_of_each_file(root: Path) -> None:
    source = xloader.open_classes(root).recipe.source
    out = np.empty((1, 2, 3), "f4")
    cut = (slice(0, 1), np.array([0, 3]), slice(1, 6, 2))
    source.fetch([Read("t", (9, 0, 0), cut)]).decode([out])
    np.testing.assert_array_equal(out[0], scene(9).t[[0, 3], 1:6:2])


def test_pickles_are_small(root: Path, tmp_path: Path) -> None:
    samples = xloader.open_classes(root).inputs("t")
    copy = pickle.loads(pickle.dumps(samples))
    assert copy.recipe == samples.recipe
    np.testing.assert_array_equal(copy[9][0], samples[9][0])
    assert copy[9][1] == samples[9][1]
    many = tmp_path / "many"
    write(many / "a" / "0.nc", scene(0))
    for number in range(1000):
        (many / "a" / f"scene_of_the_year_2011_{number:05d}.nc").touch()
    large = xloader.open_classes(many).inputs("t")
    assert len(large) == 1001
    # 1000 paths of 36 bytes, and as many numbers of classes.
    assert len(pickle.dumps(large)) < 10_000


def test_other_files_have_another_fingerprint(root: Path) -> None:
    before = xloader.open_classes(root).recipe.fingerprint
    moved = root.parent / "elsewhere"
    shutil.copytree(root, moved)
    assert xloader.open_classes(moved).recipe.fingerprint == before
    (moved / "calm" / "scene_1.nc").rename(moved / "calm" / "scene_9.nc")
    assert xloader.open_classes(moved).recipe.fingerprint != before


def spoil(kind: str, path: Path) -> None:
    if kind == "shape":
        write(path, scene(6, (4, 7)))
    elif kind == "dtype":
        write(path, scene(6).astype("f8"))
    elif kind == "dims":
        write(path, scene(6).rename(x="column"))
    elif kind == "variable":
        write(path, scene(6).drop_vars("t"))
    elif kind == "gone":
        path.unlink()
    else:
        path.write_bytes(b"no netCDF" * 100)


@pytest.mark.parametrize("kind", ["shape", "dtype", "dims", "variable", "gone", "damaged"])
def test_a_file_that_does_not_fit(root: Path, kind: str) -> None:
    samples = xloader.open_classes(root).inputs("t")
    spoil(kind, root / "front" / "scene_1.nc")
    words = {
        "shape": r"differs from the first one, calm/scene_0.nc: 't' has the shape \(4, 7\)",
        "dtype": "'t' has the dtype float64, where the first file has float32",
        "dims": "'t' has the dims",
        "variable": "there is no variable 't'",
        "gone": "cannot be read .FileNotFoundError",
        "damaged": "cannot be opened or decoded",
    }
    with samples.loader(batch_size=4, shuffle=False, output="numpy", on_error="raise") as loader:
        batches = iter(loader)
        assert next(batches).ids.tolist() == [0, 1, 2, 3]
        with pytest.raises(ChunkError, match="front/scene_1.nc.*" + words[kind]) as caught:
            next(batches)
        assert isinstance(caught.value, CorruptChunkError) == (kind == "damaged")
        assert caught.value.chunk[0] == 6
    with samples.loader(batch_size=4, shuffle=False, output="numpy", on_error="skip") as loader:
        with pytest.warns(xloader.errors.ChunkWarning):
            ids = [i for b in loader for i in b.ids[~b.is_padding].tolist()]
        assert ids == [i for i in range(16) if i != 6]
        assert loader.report().num_skipped_samples == 1
        assert loader.report().skipped_chunks == (("t", (6, 0, 0)),)


def test_zarr_that_does_not_fit(tmp_path: Path) -> None:
    for number, name in enumerate(["a/0.zarr", "a/1.zarr", "b/0.zarr"]):
        write(tmp_path / name, scene(number, (4, 6 + (number == 1))))
    samples = xloader.open_classes(tmp_path).inputs("t")
    np.testing.assert_array_equal(samples[2][0][0], scene(2).t)
    with pytest.raises(ChunkError, match=r"a/1\.zarr differs from the first one, a/0\.zarr"):
        samples[1]
    for path in (tmp_path / "b" / "0.zarr" / "t" / "c").rglob("*"):
        if path.is_file():
            path.write_bytes(b"x")
    with pytest.raises(ChunkError, match=r"b/0\.zarr|0\.zarr"):
        samples[2]


@pytest.mark.parametrize(
    ("error", "text", "make"),
    [
        (SourceNotFoundError, "no such folder", lambda root: root / "none"),
        (SourceNotFoundError, "no folder for a class", lambda root: root / "calm"),
        (SourceNotFoundError, "'empty' of 4 folders", lambda root: (root / "empty").mkdir()),
        (
            SourceNotFoundError,
            "'text' of 4 folders.*names there end in .txt",
            lambda root: [(root / "text").mkdir(), (root / "text" / "a.txt").touch()],
        ),
        (
            UnsupportedDataError,
            "cannot open this file",
            lambda root: spoil("damaged", root / "calm" / "scene_0.nc"),
        ),
    ],
)
def test_folders_that_are_refused(
    root: Path, error: type[XloaderError], text: str, make: object
) -> None:
    made = make(root)  # type: ignore[operator]
    with pytest.raises(error, match=text):
        xloader.open_classes(made if isinstance(made, Path) else root)


def test_options_that_are_refused(root: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'wind'"):
        xloader.open_classes(root, variables=["wnd"])
    for extensions in 3, [3], []:
        with pytest.raises(OptionError, match="ends of names"):
            xloader.open_classes(root, extensions=extensions)  # type: ignore[arg-type]
    for path in None, 3, b"data":
        with pytest.raises(UnsupportedDataError, match="no path"):
            xloader.open_classes(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["file", "label", "class_label"])
def test_names_of_the_samples_own_are_refused(root: Path, name: str) -> None:
    first = root / "calm" / "a.nc"
    for taken in scene(0).rename(x=name), scene(0).rename(wind=name):
        write(first, taken)
        with pytest.raises(OptionError, match=rf"'{name}' in calm/a.nc.*variables=\[...\]"):
            xloader.open_classes(root)
    assert xloader.open_classes(root, variables="t").fields == ("t", "label")


def test_files_come_in_the_order_of_image_folder(tmp_path: Path) -> None:
    for name in ("b.nc", "2/z.nc", "2/1/a.nc", "2-3/a.nc", "2-3/c.nc", "a/d.nc", "a.nc"):
        (tmp_path / "calm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "calm" / name).touch()
    # As torchvision.datasets.folder.make_dataset lists them.
    walked = [
        os.path.relpath(os.path.join(folder, name), tmp_path)
        for folder, _, names in sorted(os.walk(tmp_path / "calm"))
        for name in sorted(names)
    ]
    assert list(list_classes(tmp_path).paths) == walked


def test_a_folder_that_cannot_be_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: str) -> object:
        if str(path).endswith("front"):
            raise PermissionError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceAccessError, match=r"cannot be listed .PermissionError.*front"):
        xloader.open_classes(root)


def test_a_link_to_a_folder_above_has_an_end(root: Path) -> None:
    (root / "calm" / "again").symlink_to(root / "calm")
    samples = xloader.open_classes(root)
    assert len(samples) == 16 + 5


def test_geotiff_needs_rioxarray(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "calm" / "a.tif").write_bytes(b"II*\0")
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name == "rioxarray" else find(name, *a),
    )
    with pytest.raises(MissingDependencyError, match="geotiff"):
        xloader.open_classes(root)


@pytest.mark.filterwarnings("ignore")
def test_geotiff(tmp_path: Path) -> None:
    pytest.importorskip("rioxarray")
    arrays = {}
    for number, name in enumerate(["field/a.tif", "field/b.tiff", "forest/c.TIF"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        array = xr.DataArray(
            np.arange(60, dtype="u2").reshape(3, 4, 5) + number,
            {"band": [1, 2, 3], "y": np.arange(4.0), "x": np.arange(5.0)},
        )
        array.rio.write_crs("EPSG:4326").rio.to_raster(tmp_path / name, driver="GTiff")
        arrays[name] = array
    samples = xloader.open_classes(tmp_path)
    assert samples.shapes["band_data"] == (3, 4, 5)
    for index, array in enumerate(arrays.values()):
        np.testing.assert_array_equal(samples[index][0], array)
