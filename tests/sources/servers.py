"""Servers on the local host: HTTP files with ranges, and S3. Each test process has one of each."""

from __future__ import annotations

import atexit
import functools
import os
import re
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# A proxy of the user cannot reach the local host of the tests.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"

BUCKET = "bucket"
KEY, SECRET = "canarykey", "canarysecret"


class _Files(SimpleHTTPRequestHandler):
    """Serves files and ranges.

    ``/status/403/...`` is answered with that status, and ``/silent/...`` is never answered.
    """

    protocol_version = "HTTP/1.1"
    # Head and body go in one packet; otherwise each answer waits for the client's acknowledgement.
    wbufsize = -1
    disable_nagle_algorithm = True
    is_ending = threading.Event()

    def log_message(self, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        if not self._refuses():
            super().do_HEAD()

    def do_GET(self) -> None:
        if self._refuses():
            return
        path = Path(self.translate_path(self.path))
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start >= stop:
            self._answer(416)
            return
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        self.wfile.write(data[start:stop])

    def _refuses(self) -> bool:
        if self.path.startswith("/silent/"):
            self.is_ending.wait()
            self.close_connection = True
            return True
        found = re.match(r"/status/(\d+)/", self.path)
        if found is None:
            return False
        self._answer(int(found[1]))
        return True

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


@functools.cache
def http_server() -> tuple[Path, str]:
    """Return a folder, and the URL that serves its files."""
    folder = tempfile.TemporaryDirectory()
    handler = functools.partial(_Files, directory=folder.name)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def end() -> None:
        _Files.is_ending.set()
        server.shutdown()
        server.server_close()
        folder.cleanup()

    atexit.register(end)
    return Path(folder.name), f"http://127.0.0.1:{server.server_port}"


@functools.cache
def s3_server() -> str:
    """Return the endpoint of an S3 server with one empty bucket that accepts any credentials."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    atexit.register(server.stop)
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    s3_client(endpoint).create_bucket(Bucket=BUCKET)
    return endpoint


@functools.cache
def s3_client(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


def s3_upload(folder: Path, prefix: str) -> None:
    """Upload a folder's files to the bucket."""
    client = s3_client(s3_server())
    for path in folder.rglob("*"):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(folder).as_posix()}"
            client.put_object(Bucket=BUCKET, Key=key, Body=path.read_bytes())


def s3_options() -> dict[str, Any]:
    """Return s3fs options for the server."""
    return {
        "key": KEY,
        "secret": SECRET,
        "client_kwargs": {"endpoint_url": s3_server(), "region_name": "us-east-1"},
    }
