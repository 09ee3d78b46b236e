"""URLs of object stores that obstore reads, and where their credentials come from.

obstore makes one request for a chunk, without Python's lock; s3fs makes two, with it. But fsspec's
libraries find credentials in more places. So a URL goes to obstore where what it needs can be seen:

===============  ========================================================================
URL              goes to obstore if
===============  ========================================================================
``s3://``        keys and a region (or an endpoint) are in the environment, or boto3 is
                 installed and finds them: a profile, single sign-on, a role
``gs://``        ``GOOGLE_APPLICATION_CREDENTIALS`` or ``gcloud`` names a credentials file
``abfs://``      with ``container@account``, and a key is in the environment
``https://``     there is no user and no query in the URL
===============  ========================================================================

Everything else goes to fsspec, and so does any URL with ``storage_options``.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from zarr.abc.store import Store
from zarr.storage import ObjectStore

_AZURE_KEYS: Final = (
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_CLIENT_SECRET",
)


def open_url(url: str) -> Store | None:
    """Open a URL by obstore.

    Parameters
    ----------
    url : str
        The URL of a Zarr store.

    Returns
    -------
    zarr.storage.ObjectStore or None
        None where obstore is not installed, does not know the scheme, or would not find the
        credentials that fsspec's library finds.
    """
    parts = urlsplit(url)
    make = _MAKERS.get(parts.scheme)
    is_plain = not (parts.query or parts.fragment or "::" in url)
    if make is None or not is_plain or importlib.util.find_spec("obstore") is None:
        return None
    from obstore.exceptions import BaseError

    try:
        store = make(url)
    # Such as credentials of a kind that it does not know.
    except (BaseError, ValueError):
        return None
    return None if store is None else ObjectStore(store, read_only=True)


def _open_s3(url: str) -> Any:
    from obstore.store import S3Store

    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    options: dict[str, Any] = {}
    if not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= os.environ.keys():
        if importlib.util.find_spec("boto3") is None:
            return None
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = boto3.Session()
        if session.get_credentials() is None:
            return None
        options["credential_provider"] = Boto3CredentialProvider(session)
        region = session.region_name or region
        # A profile may name an endpoint, which only a client tells.
        found = str(session.client("s3", region_name=region or "us-east-1").meta.endpoint_url)
        is_amazons = re.search(r"\.amazonaws\.com(\.cn)?$", str(urlsplit(found).hostname))
        endpoint = endpoint if is_amazons else found
    if endpoint is None and region is None:
        # Asked in the wrong region, S3 answers with a redirection that obstore does not follow.
        return None
    options["region"] = region or "us-east-1"
    if endpoint is not None:
        options.update(endpoint=endpoint, client_options=_client_options(endpoint))
    return S3Store.from_url(url, **options)


def _open_gs(url: str) -> Any:
    from obstore.store import GCSStore

    folder = os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config" / "gcloud"
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = Path(named or Path(folder) / "application_default_credentials.json")
    return GCSStore.from_url(url, application_credentials=str(file)) if file.is_file() else None


def _open_azure(url: str) -> Any:
    from obstore.store import AzureStore

    parts = urlsplit(url)
    has_key = any(name in os.environ for name in _AZURE_KEYS)
    # Without the account in it, libraries read such a URL in different ways.
    return AzureStore.from_url(url) if parts.username and has_key else None


def _open_http(url: str) -> Any:
    from obstore.store import HTTPStore

    if urlsplit(url).username is not None:
        return None
    return HTTPStore.from_url(url, client_options=_client_options(url))


def _client_options(url: str) -> Any:
    return {"allow_http": url.startswith("http://")}


_MAKERS: Final[dict[str, Callable[[str], Any]]] = {
    "s3": _open_s3,
    "s3a": _open_s3,
    "gs": _open_gs,
    "abfs": _open_azure,
    "abfss": _open_azure,
    "http": _open_http,
    "https": _open_http,
}
"""By scheme: opens an obstore store, or gives None where its credentials are not seen."""
