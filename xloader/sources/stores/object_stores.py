"""Opens URLs with obstore, where obstore can find the credentials.

obstore makes one request for a chunk and does not hold Python's lock. s3fs makes two and holds it.
But the libraries of fsspec find credentials in more places. So obstore opens a URL only where this
process finds everything that obstore needs:

===============  ========================================================================
URL              goes to obstore if
===============  ========================================================================
``s3://``        boto3 is installed and finds credentials, and a region or an endpoint; or,
                 without boto3 and without a configuration file, the environment has them
``gs://``        ``GOOGLE_APPLICATION_CREDENTIALS`` or ``gcloud`` names a credentials file
``abfs://``      it has the form ``container@account``, and the environment has a credential
``https://``     there is no user in the URL
===============  ========================================================================

fsspec opens all other URLs. It also opens URLs with ``storage_options``, with a query or a
fragment, with a scheme that fsspec is configured for, and URLs that obstore fails to open.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from zarr.abc.store import Store
from zarr.storage import ObjectStore

_SECRETS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_SAS_TOKEN"),
    "AZURE_CLIENT_SECRET",
)
"""Environment variables whose values no message may show."""

_SCHEMES: Final = frozenset({"s3", "s3a", "gs", "abfs", "abfss", "http", "https"})
"""Beginnings of the URLs that obstore opens."""

_AMAZONS: Final = re.compile(r"https://s3(\.[\w-]+)?\.amazonaws\.com(\.cn)?/?$")
"""Endpoints that obstore finds by itself from the region."""


def secrets() -> tuple[str, ...]:
    """Values of the environment variables that hold credentials."""
    return tuple(filter(None, (os.environ.get(name) for name in _SECRETS)))


def is_known(url: str) -> bool:
    """Whether obstore is tried first for a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    if parts.scheme not in _SCHEMES or parts.query or parts.fragment or "::" in url:
        return False
    return importlib.util.find_spec("obstore") is not None and not _is_configured(parts.scheme)


def open_url(url: str, timeout: float = 300.0) -> Store | None:
    """Open a URL with obstore.

    `timeout`: seconds after which obstore ends a request. obstore does not retry; its caller does.
    """
    if not is_known(url):
        return None
    from obstore.exceptions import BaseError

    try:
        store = _open(url, timeout)
    # For example, credentials of a kind that obstore does not know.
    except (BaseError, ValueError):
        return None
    return None if store is None else ObjectStore(store, read_only=True)


def _is_configured(scheme: str) -> bool:
    """Whether the user has set fsspec options for a scheme, in files or the environment."""
    if importlib.util.find_spec("fsspec") is None:
        return False
    from fsspec.config import conf

    same = {"s3a": "s3", "abfss": "abfs", "https": "http"}
    return bool(conf.get(scheme) or conf.get(same.get(scheme, scheme)))


def _open(url: str, timeout: float) -> Any:
    """Open a URL with obstore; None where it lacks credentials or a region.

    There are no retries, and HTTP only where it is asked for.
    """
    from obstore import store

    parts = urlsplit(url)
    client = {"timeout": f"{math.ceil(timeout)}s", "allow_http": parts.scheme == "http"}
    options: dict[str, Any] = {"retry_config": {"max_retries": 0}, "client_options": client}
    match parts.scheme:
        case "s3" | "s3a":
            of_user = _s3_options()
            if of_user is None:
                return None
            client["allow_http"] = str(of_user.get("endpoint", "")).startswith("http://")
            return store.S3Store.from_url(url, **of_user, **options)
        case "gs":
            folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
            named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
            file = Path(named or Path(folder) / "application_default_credentials.json")
            if file.is_file():
                return store.GCSStore.from_url(url, application_credentials=str(file), **options)
        case "abfs" | "abfss":
            has_key = any(os.environ.get(name) for name in _SECRETS if name.startswith("AZURE_"))
            # Libraries read a URL without the account in different ways.
            if parts.username and has_key:
                return store.AzureStore.from_url(url, **options)
        case _:
            if parts.username is None:
                return store.HTTPStore.from_url(url, **options)
    return None


def _s3_options() -> dict[str, Any] | None:
    """Options of the user's S3 for obstore. None where they are not found in this process."""
    if importlib.util.find_spec("boto3") is not None:
        return _s3_options_by_boto3()
    named = os.environ.get("AWS_CONFIG_FILE") or Path.home() / ".aws" / "config"
    has_keys = all(map(os.environ.get, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")))
    if not has_keys or os.environ.get("AWS_PROFILE") or Path(named).is_file():
        return None
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return _at(endpoint, region)


def _s3_options_by_boto3() -> dict[str, Any] | None:
    """The same options, as boto3 finds them."""
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            return None
        region = session.region_name or os.environ.get("AWS_REGION")
        # A profile may name an endpoint, and only a client shows it.
        client = session.client("s3", region_name=region or "us-east-1")
    except BotoCoreError:
        return None
    endpoint = str(client.meta.endpoint_url)
    place = _at(None if _AMAZONS.match(endpoint) else endpoint, region)
    provider = {"credential_provider": Boto3CredentialProvider(session)}
    return None if place is None else {**place, **provider}


def _at(endpoint: str | None, region: str | None) -> dict[str, Any] | None:
    """Options for the region and the endpoint of the buckets. None where neither is known."""
    if endpoint is None:
        return {"region": region} if region else None
    return {"region": region or "us-east-1", "endpoint": endpoint}
