"""Every kind of store: an epoch, pickling, forks, names and errors."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import xloader
from tests.sources import kinds, servers, store_kinds
from tests.sources.store_kinds import STORE_KINDS
from xloader.errors import (
    OptionError,
    SourceAccessError,
    SourceNotFoundError,
    UnsupportedDataError,
    WorkersWarning,
    XloaderError,
)
from xloader.sources.open.from_zarr import ZarrOpener
from xloader.sources.open.open_source import open_source
from xloader.sources.stores import locations
from xloader.sources.stores.locations import pack, place_at
from xloader.sources.stores.redaction import safe_name, scrub, secrets_of
from xloader.testing import SourceRecorder, write_store

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", sorted(STORE_KINDS))
def test_an_epoch_over_every_store(kind: str, tmp_path: Path) -> None:
    opened = STORE_KINDS[kind](tmp_path, kinds.make_dataset())
    assert opened.source.path_of("t").startswith("direct")
    recorder = SourceRecorder(opened.source)
    samples = xloader.open(recorder).window(time=3, stride=1)
    options = {"output": "numpy", "memory": "64MiB", "on_nan": "ignore"}
    with samples.loader(batch_size=4, **options) as loader:
        expected = loader.explain()
        seen = []
        for batch in loader:
            for row, index in enumerate(batch.ids.tolist()):
                seen.append(index)
                part = opened.oracle.isel(time=slice(index, index + 3))
                for name in batch.names:
                    wanted = part[name].transpose(*opened.source.variables[name].dims).values
                    np.testing.assert_array_equal(batch[name][row], wanted, strict=True)
        assert sorted(seen) == list(range(9))
        assert loader.report().num_reads == expected.num_reads == recorder.num_reads
        assert expected.read_amplification == 1


def run(script: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "RUST_LOG": "off"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


READER = """
import os, pickle, signal, sys, warnings
import numpy as np
from tests.sources import kinds
from xloader.errors import ForkError

warnings.simplefilter("ignore")


def tried(what):
    try:
        what()
    except ForkError:
        return "refused"
    return "done"


for name, data, wanted in pickle.load(open(sys.argv[1], "rb")):
    def read(source):
        np.testing.assert_array_equal(kinds.read_all(source, "t"), wanted)

    source = pickle.loads(data)
    read(source)
    print(name, len(source.coordinates()["time"]), flush=True)
    packed = pickle.dumps(source)
    if hasattr(os, "fork") and not os.fork():
        # A child that waits for ever is ended, and says nothing.
        signal.alarm(20)
        words = [
            tried(lambda: read(source)),
            tried(lambda: source.coordinates()),
            tried(lambda: read(pickle.loads(packed))),
        ]
        print(name, *words, flush=True)
        os._exit(0)
    if hasattr(os, "fork"):
        os.wait()
"""


def test_every_store_is_read_in_another_process_and_hangs_in_no_fork_of_it(tmp_path: Path) -> None:
    sent = []
    for name, make in STORE_KINDS.items():
        folder = tmp_path / name
        folder.mkdir()
        opened = make(folder, kinds.make_dataset())
        sent.append((name, pickle.dumps(opened.source), opened.oracle["t"].values))
    (tmp_path / "sent").write_bytes(pickle.dumps(sent))
    answers: dict[str, list[str]] = {name: [] for name in STORE_KINDS}
    for line in run(READER, tmp_path / "sent").splitlines():
        name, *words = line.split()
        answers[name] += words
    for name, (num_times, *words) in answers.items():
        assert num_times == "11"
        given = "done" if name == "zip-path" else "refused"
        # Data copied from memory need no library, and a zip file gets its own handle.
        is_plain = name.startswith("zip") or name.endswith("memory")
        packed = "done" if is_plain else "refused"
        assert words == ([given, given, packed] if hasattr(os, "fork") else []), name


class LockedStore(MemoryStore):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = threading.Lock()


def test_what_does_not_pickle_is_named() -> None:
    dataset = kinds.numeric(kinds.make_dataset())
    store = write_store(dataset, kinds.CHUNKS)
    assert isinstance(store, MemoryStore)
    samples = xloader.open(LockedStore(store._store_dict)).window(time=2)
    for attempt in (lambda: pickle.dumps(samples), lambda: pack(samples, "these", "")):
        with pytest.raises(
            UnsupportedDataError, match=r"LockedStore \(a kind of MemoryStore\)"
        ) as e:
            attempt()
        assert "cannot pickle '_thread.lock' object" in str(e.value)
        assert "path or URL" in str(e.value)
    pack(open_source(store), "a source", "")
    with pytest.raises(UnsupportedDataError, match="a lock cannot be sent"):
        pack(threading.Lock(), "a lock", "")


def test_much_memory_that_travels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS)
    pickle.dumps(open_source(store))
    monkeypatch.setattr(locations, "MOST_QUIET_NBYTES", 2000)
    with pytest.warns(WorkersWarning, match="is in memory: .* MiB .* to each process"):
        pickle.dumps(open_source(store))


def test_a_store_of_a_local_class_travels_by_value() -> None:
    class Local(MemoryStore):
        pass

    memory = write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS)
    assert isinstance(memory, MemoryStore)
    copy = pickle.loads(pickle.dumps(open_source(Local(memory._store_dict))))
    assert kinds.read(copy, "s", ()) == 2.5


# icechunk


def test_a_snapshot_stays_while_its_branch_moves(tmp_path: Path) -> None:
    dataset = kinds.make_dataset()
    repository = store_kinds.repository(tmp_path, dataset)
    first = repository.lookup_branch("main")
    repository.create_tag("one", first)
    writable = repository.writable_session("main")
    sources = [
        xloader.open(repository).recipe.source,
        open_source(repository, tag="one"),
        open_source(repository, snapshot_id=first),
        open_source(writable),
        open_source(writable.store),
        open_source(zarr.open_group(repository.readonly_session("main").store, mode="r")),
    ]
    assert {source.fingerprint for source in sources} == {sources[0].fingerprint}
    packed = pickle.dumps(sources)
    moving = repository.writable_session("main")
    zarr.open_group(moving.store)["t"][:] = -1
    zarr.open_group(writable.store)["t"][:] = -2
    changed = open_source(writable)
    moving.commit("move on")
    moved = open_source(repository, branch="main")
    for source in (*sources, *pickle.loads(packed)):
        np.testing.assert_array_equal(kinds.read_all(source, "t"), dataset["t"].values)
        assert f"snapshot {first}" in source.name
    assert (kinds.read_all(moved, "t") == -1).all()
    assert (kinds.read_all(changed, "t") == -2).all()
    assert len({sources[0].fingerprint, moved.fingerprint, changed.fingerprint}) == 3
    assert str(tmp_path) in moved.name
    with pytest.raises(UnsupportedDataError, match="uncommitted changes cannot be sent") as caught:
        pickle.dumps(changed)
    assert "commit the session's changes" in str(caught.value)


def test_versions_that_are_not_there(tmp_path: Path) -> None:
    repository = store_kinds.repository(tmp_path, kinds.make_dataset())
    for version in ({"branch": "dev"}, {"tag": "dev"}, {"snapshot_id": "AAAAAAAAAAAAAAAAAAAG"}):
        with pytest.raises(SourceNotFoundError, match=r"Allowed: branch='main'"):
            open_source(repository, **version)
    with pytest.raises(OptionError, match="only one version"):
        open_source(repository, branch="main", tag="one")
    for source in (tmp_path, repository.readonly_session("main"), MemoryStore()):
        with pytest.raises(OptionError, match="only an icechunk repository"):
            open_source(source, branch="main")
    with pytest.raises(SourceNotFoundError, match=r"icechunk\.Repository\.open\("):
        open_source(tmp_path / "repository")


# Errors and secrets


def told(error: BaseException) -> str:
    """Return all text of an error that a user would see."""
    return "".join(traceback.format_exception(error)) + repr(error)


CANARY = "canary"
SIGNED = f"X-Amz-Signature={CANARY}"


def http_options(**more: Any) -> dict[str, Any]:
    return {"headers": {"X-Token": f"{CANARY}token"}, **more}


ANSWERS: dict[str, tuple[type[XloaderError], str]] = {
    "/status/404/a.zarr": (SourceNotFoundError, "no Zarr group"),
    "/status/401/a.zarr": (SourceAccessError, "refuses access"),
    "/status/403/a.zarr": (SourceAccessError, "refuses access"),
    "/status/500/a.zarr": (SourceAccessError, "cannot be opened"),
    "/silent/a.zarr": (SourceAccessError, "does not answer in time"),
}


def open_by_fsspec(url: str, *, is_quick: bool) -> None:
    import aiohttp

    quick = {"timeout": aiohttp.ClientTimeout(total=0.1)} if is_quick else {}
    options = http_options(client_kwargs=quick)
    open_source(url, storage_options=options, max_retries=1)


def open_by_obstore(url: str, *, is_quick: bool) -> None:
    from obstore.store import HTTPStore

    quick = {"timeout": "100ms"} if is_quick else {}
    store = HTTPStore.from_url(
        url, client_options={"allow_http": True, **quick}, retry_config={"max_retries": 0}
    )
    open_source(store)


@pytest.mark.parametrize("open_by", [open_by_fsspec, open_by_obstore])
@pytest.mark.parametrize("path", ANSWERS)
def test_http_that_refuses(path: str, open_by: Any, caplog: pytest.LogCaptureFixture) -> None:
    kind, words = ANSWERS[path]
    _, url = servers.http_server()
    signed = f"{url.replace('://', f'://me:{CANARY}@')}{path}?{SIGNED}"
    is_quick = "silent" in path
    with pytest.raises(kind, match=words) as caught:
        open_by(signed, is_quick=is_quick)
    assert path in str(caught.value)
    if open_by is open_by_fsspec:
        assert f"{url}{path}" in str(caught.value)
        number = path.split("/")[2]
        assert number in str(caught.value) or number in ("404", "a.zarr")
    elif is_quick:
        assert re.search(r"5 attempts of \d+\.\d s", str(caught.value))
    assert CANARY not in told(caught.value) + caplog.text


def test_s3_that_refuses(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    options = servers.s3_options()
    with pytest.raises(SourceNotFoundError, match="no Zarr group") as absent:
        open_source("s3://bucket/nothing.zarr", storage_options=options)
    with pytest.raises(SourceNotFoundError, match="no Zarr group") as no_bucket:
        open_source("s3://no-bucket/a.zarr", storage_options=options)
    with pytest.raises(SourceAccessError, match=r"s3://bucket/a\.zarr") as malformed:
        open_source(f"s3://me:{CANARY}/@bucket/a.zarr", storage_options=options)
    _, url = servers.http_server()
    options["client_kwargs"] = {"endpoint_url": f"{url}/status/403", "region_name": "us-east-1"}
    with pytest.raises(SourceAccessError, match="refuses access") as denied:
        open_source("s3://bucket/a.zarr", storage_options=options)
    options["client_kwargs"]["endpoint_url"] = "http://127.0.0.1:1"
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    with pytest.raises(SourceAccessError, match="cannot be reached") as away:
        open_source("s3://bucket/a.zarr", storage_options=options)
    assert "anon=True" in str(denied.value)
    for caught in (absent, no_bucket, malformed, denied, away):
        assert CANARY not in told(caught.value) + caplog.text


def test_sources_show_no_credential(tmp_path: Path) -> None:
    dataset = kinds.make_dataset()
    for kind in ("fsspec-s3", "obstore-s3", "fsspec-references"):
        source = STORE_KINDS[kind](tmp_path, dataset).source
        samples = xloader.open(source).window(time=2)
        with samples.loader(batch_size=2, output="numpy", on_nan="ignore") as loader:
            list(loader)
            shown = [source, source.name, samples, loader, loader.explain(), loader.report()]
            shown += [source.fingerprint, vars(source), source.path_of("t")]
        place = place_at("s3://bucket/a.zarr", servers.s3_options())
        shown += [place, ZarrOpener(place, "", {"storage_options": servers.s3_options()})]
        assert servers.SECRET not in " ".join(map(repr, shown))
        assert servers.KEY not in " ".join(map(repr, shown))


def test_a_file_behind_a_url_that_refuses() -> None:
    _, url = servers.http_server()
    signed = f"{url}/status/403/a.nc?{SIGNED}"
    with pytest.raises(XloaderError, match=r"status/403/a\.nc") as caught:
        open_source(signed, engine="h5netcdf", storage_options=http_options())
    assert CANARY not in told(caught.value)


def test_plain_http_needs_consolidated_metadata(tmp_path: Path) -> None:
    from obstore.store import HTTPStore

    url = store_kinds.on_http(tmp_path, kinds.make_dataset())
    store = HTTPStore.from_url(url, client_options={"allow_http": True})
    with pytest.raises(SourceAccessError, match=r"zarr\.consolidate_metadata"):
        open_source(store)


def test_an_absent_group_is_told_from_an_absent_store() -> None:
    store = write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS)
    root = zarr.open_group(store)
    root.create_group("deep")
    kinds.numeric(kinds.make_dataset()).to_zarr(
        store, group="deep/er", zarr_format=3, consolidated=False
    )
    with pytest.raises(SourceNotFoundError, match=r"no such group.*did you mean 'deep/er'") as e:
        open_source(store, group="deep/err")
    assert "Allowed: the root, deep/er" in str(e.value)
    with pytest.raises(SourceNotFoundError, match=r"there is no Zarr group here\. Given"):
        open_source(MemoryStore(), group="deep/er")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_format_that_is_asked_for(zarr_format: int) -> None:
    store = write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS, zarr_format=zarr_format)
    assert kinds.read(open_source(store, zarr_format=zarr_format), "s", ()) == 2.5
    with pytest.raises(SourceNotFoundError):
        open_source(store, zarr_format=5 - zarr_format)


def test_listing_that_is_refused_does_not_hide_a_v2_store() -> None:
    # Without the permission to list, S3 answers "forbidden" instead of "absent".
    asked = []

    class Refusing(MemoryStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            asked.append(key)
            if key not in self._store_dict:
                raise PermissionError(key)
            return await super().get(key, *args, **kwargs)

    store = write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS, zarr_format=2)
    assert isinstance(store, MemoryStore)
    zarr.consolidate_metadata(store)
    assert kinds.read(open_source(Refusing(store._store_dict)), "s", ()) == 2.5
    asked.clear()
    with pytest.raises(SourceAccessError, match="refuses access"):
        open_source(Refusing())
    # The documents are asked for one by one: of several failures at once, asyncio logs all but one.
    assert asked == ["zarr.json", ".zgroup"]


def test_metadata_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": ')
    with pytest.raises(UnsupportedDataError, match="metadata of this Zarr group cannot be read"):
        open_source(tmp_path)
    (tmp_path / "a.zarr.zip").write_bytes(b"no zip file")
    with pytest.raises(UnsupportedDataError, match="not a zip file"):
        open_source(tmp_path / "a.zarr.zip")


def test_options_that_no_store_takes(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    write_store(kinds.numeric(kinds.make_dataset()), kinds.CHUNKS, path)
    with pytest.raises(OptionError, match=r"are only for URLs.*Given: key") as caught:
        open_source(path, storage_options={"key": CANARY})
    assert CANARY not in str(caught.value)
    with pytest.raises(UnsupportedDataError, match=r"does not take these options.*wibble"):
        open_source(path, wibble=1)


def test_file_urls_stand_for_paths(tmp_path: Path) -> None:
    folder = tmp_path / "my data"
    folder.mkdir()
    for part in range(2):
        labels = {"time": np.arange(4) + 4 * part}
        xr.Dataset({"t": ("time", np.arange(4.0))}, labels).to_netcdf(folder / f"a {part}.nc")
    url = folder.as_uri()
    assert "%20" in url
    for start in (url, url.replace("file://", "file://localhost"), url.replace("%20", " ")):
        assert open_source(f"{start}/a%200.nc").name == str(folder / "a 0.nc")
        assert len(xloader.concat(f"{start}/a%20*.nc").window(time=8)) == 1
        assert (
            len(xloader.concat([f"{start}/a%20{part}.nc" for part in range(2)]).window(time=8)) == 1
        )
    # A path object has made one slash of three.
    samples = xloader.open(Path(f"{url}/a%200.nc")).window(time=2)
    samples.materialize(f"{url}/b%20b.zarr")
    samples.stats(path=f"{url}/s%20s.nc")
    with samples.mosaic(f"{url}/m%20m.zarr") as mosaic:
        mosaic.write(range(2), samples[:][0])
    names = {"a 0.nc", "a 1.nc", "b b.zarr", "m m.zarr", "s s.nc"}
    assert {path.name for path in folder.iterdir()} == names
    (folder / "a%200.nc").write_bytes((folder / "a 1.nc").read_bytes())
    assert open_source(f"file://{folder}/a%200.nc").name == str(folder / "a%200.nc")


def test_references_in_a_file(tmp_path: Path) -> None:
    path = store_kinds.write(tmp_path, kinds.make_dataset())
    references = {
        file.relative_to(path).as_posix(): [str(file)] for file in path.rglob("*") if file.is_file()
    }
    import json

    (tmp_path / "a.json").write_text(json.dumps(references))
    for source in (
        open_source(tmp_path / "a.json", engine="kerchunk"),
        open_source("reference://", storage_options={"fo": str(tmp_path / "a.json")}),
    ):
        np.testing.assert_array_equal(kinds.read_all(source, "t"), kinds.make_dataset()["t"].values)
        assert source.name == f"reference:// of {tmp_path}/a.json"


# Names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("/data/a@b?.zarr", "/data/a@b?.zarr"),
        ("s3://key:can/ary@bucket/a.zarr", "s3://bucket/a.zarr"),
        ("https://host:8080/a@b.zarr", "https://host:8080/a@b.zarr"),
        ("zip://a::https://me:canary@host/a.zip?sig=canary", "zip://a::https://host/a.zip"),
        ("simplecache::s3://key:canary@bucket/a.zarr", "simplecache::s3://bucket/a.zarr"),
        ("https://host/a.zarr#token=canary", "https://host/a.zarr"),
    ],
)
def test_safe_names(text: str, name: str) -> None:
    assert safe_name(text) == name


@pytest.mark.skipif("fsspec-s3" not in STORE_KINDS, reason="no moto")
def test_a_netcdf_file_in_s3_is_read_by_its_url(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    dataset = kinds.numeric(kinds.make_dataset())
    folder = tmp_path / "file"
    folder.mkdir()
    dataset.to_netcdf(folder / "a.nc", engine="h5netcdf")
    servers.s3_upload(folder, "file")
    source = open_source("s3://bucket/file/a.nc", storage_options=servers.s3_options())
    np.testing.assert_array_equal(kinds.read_all(source, "t"), dataset["t"])


def test_secrets_are_found_wherever_they_are() -> None:
    options = {
        "key": "canary1",
        "anon": False,
        "client_kwargs": {"headers": [("Authorization", b"canary2")], "region_name": "eu-1"},
        "endpoint_url": "https://me:canary3@host",
        "fo": {"a/0": "canary is data here"},
    }
    assert secrets_of(options) == ("canary1", "Authorization", "canary2")
    text = "GET https://me:canary3@host/a?s=canary4 with canary1 and canary2"
    assert "canary" not in scrub(text, secrets_of(options))
