"""Object store URLs: the library that reads them, and the credentials that it finds."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, ObjectStore

import xloader
from tests.sources import kinds, servers, store_kinds
from xloader.sources.open.open_source import open_source
from xloader.sources.stores import object_stores
from xloader.sources.stores.locations import UrlPlace
from xloader.sources.stores.object_stores import open_url
from xloader.sources.stores.redaction import cause_of, told_of

if importlib.util.find_spec("obstore"):
    from obstore.store import HTTPStore

needs_s3 = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "obstore", "s3fs"))), reason="no local S3"
)
needs_http = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("obstore", "aiohttp"))), reason="no obstore or aiohttp"
)
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
PLACES = ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Return a folder for AWS profiles, on a machine without any other S3 settings."""
    for name in (*CREDENTIALS, *PLACES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def without(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    """Make a library appear not installed."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else real(name)
    )


def upload(folder: Path, prefix: str) -> str:
    name = store_kinds.unique(prefix)
    servers.s3_upload(store_kinds.write(folder, kinds.make_dataset()), name)
    return f"s3://{servers.BUCKET}/{name}"


def check_values(url: str) -> None:
    source = open_source(url)
    expected = kinds.make_dataset()["t"].to_numpy()
    np.testing.assert_array_equal(kinds.read_all(source, "t"), expected)
    samples = xloader.open(url).window(time=2)
    np.testing.assert_array_equal(samples[1][samples.fields.index("t")], expected[2:4])


@needs_s3
def test_keys_in_the_environment(aws: Path, monkeypatch: pytest.MonkeyPatch):
    url = upload(aws, "keys")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    # The URL does not give the bucket's region, and obstore does not look it up.
    assert open_url(url) is None
    monkeypatch.setenv("AWS_ENDPOINT_URL", servers.s3_server())
    assert isinstance(open_url(url), ObjectStore)
    check_values(url)
    without(monkeypatch, "boto3")
    assert isinstance(open_url(url), ObjectStore)
    # Only boto3 reads the other settings of such a file, for example an endpoint.
    (aws / "config").write_text("[default]\n")
    assert open_url(url) is None
    (aws / "config").unlink()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    assert open_url(url) is None


@needs_s3
def test_a_profile_is_read_by_boto3(aws: Path, monkeypatch: pytest.MonkeyPatch):
    url = upload(aws, "profile")
    (aws / "credentials").write_text(
        f"[climate]\naws_access_key_id={servers.KEY}\naws_secret_access_key={servers.SECRET}\n"
    )
    (aws / "config").write_text(
        f"[profile climate]\nregion=us-east-1\nendpoint_url={servers.s3_server()}\n"
    )
    assert open_url(url) is None
    monkeypatch.setenv("AWS_PROFILE", "climate")
    store = open_url(url)
    assert isinstance(store, ObjectStore)
    assert store.store.config["region"] == "us-east-1"
    check_values(url)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert open_url(url) is None


@needs_s3
def test_what_obstore_cannot_open_is_tried_with_fsspec(aws: Path, monkeypatch: pytest.MonkeyPatch):
    url = upload(aws, "fallback")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", servers.s3_server())
    refusing = HTTPStore.from_url(
        f"{servers.http_server()[1]}/status/403/a.zarr",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    monkeypatch.setattr(object_stores, "_open", lambda url, timeout: refusing)
    check_values(url)


@needs_s3
def test_what_a_server_repeats_of_a_token_is_not_told(aws: Path, monkeypatch: pytest.MonkeyPatch):
    token = "canary-session-token"
    text = f"403: <?xml version='1.0'?><Error><Token-0>{token}</Token-0></Error>"
    assert token not in told_of(PermissionError(text))
    assert cause_of(PermissionError(text)) is None
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    assert token in UrlPlace("s3://bucket/a.zarr", {}).secrets
    assert token not in told_of(PermissionError(token), UrlPlace("s3://bucket/a.zarr", {}).secrets)


@needs_http
def test_what_fsspec_is_configured_for_is_left_to_it(monkeypatch: pytest.MonkeyPatch):
    import fsspec

    assert open_url("https://host/a.zarr") is not None
    monkeypatch.setitem(fsspec.config.conf, "http", {"client_kwargs": {"headers": {"a": "b"}}})
    assert open_url("https://host/a.zarr") is None


@needs_s3
def test_where_boto3_is_missing_fsspec_reads_the_profile(
    aws: Path, monkeypatch: pytest.MonkeyPatch
):
    url = upload(aws, "without")
    (aws / "credentials").write_text(
        f"[default]\naws_access_key_id={servers.KEY}\naws_secret_access_key={servers.SECRET}\n"
    )
    (aws / "config").write_text(f"[default]\nendpoint_url={servers.s3_server()}\n")
    without(monkeypatch, "boto3")
    assert isinstance(UrlPlace(url, {}).open_plain(), FsspecStore)
    check_values(url)


@needs_http
def test_http_is_read_by_obstore_and_listed_by_fsspec(tmp_path: Path):
    url = store_kinds.on_http(tmp_path, kinds.make_dataset(), zarr_format=2)
    assert isinstance(UrlPlace(url, {}).open_plain(), ObjectStore)
    assert isinstance(UrlPlace(url, {}).by_fsspec().open_plain(), FsspecStore)
    # Without consolidated metadata the store must be listed.
    check_values(url)
    zarr.consolidate_metadata(str(servers.http_server()[0] / url.rpartition("/")[2]))
    check_values(url)


@needs_http
@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@host/a.zarr",
        "https://host/a.zarr?sig=abc",
        "zip::https://host/a.zarr.zip",
        "az://container/a.zarr",
        "abfs://container@account.dfs.core.windows.net/a.zarr",
        "gs://bucket/a.zarr",
        "github://owner:repo@main/a.zarr",
        "memory://a.zarr",
    ],
)
def test_what_only_fsspec_knows(url: str, aws: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(aws))
    assert open_url(url) is None


@needs_http
def test_credentials_that_are_seen(aws: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCESS_KEY", "bm90IGEga2V5")
    assert isinstance(open_url("abfs://box@account.dfs.core.windows.net/a.zarr"), ObjectStore)
    file = aws / "application_default_credentials.json"
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(aws))
    file.write_text(
        '{"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}'
    )
    assert isinstance(open_url("gs://bucket/a.zarr"), ObjectStore)
    # obstore does not support this kind of credentials.
    file.write_text('{"type": "external_account"}')
    assert open_url("gs://bucket/a.zarr") is None


def test_without_obstore_everything_is_fsspecs(monkeypatch: pytest.MonkeyPatch):
    without(monkeypatch, "obstore")
    assert open_url("https://host/a.zarr") is None
