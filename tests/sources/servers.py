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


class Files(SimpleHTTPRequestHandler):
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
        path = Path(self.translate_path(self.path))
        if self._refuses():
            return
        if path.is_file():
            self.send_part(path.read_bytes())
        else:
            super().do_GET()

    def send_part(self, data: bytes) -> None:
        """Answer with all bytes of a file, or with the range that is asked for."""
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, data)
            return
        first, last = wanted[1], wanted[2]
        start = int(first) if first else max(0, len(data) - int(last))
        stop = min(int(last) + 1, len(data)) if first and last else len(data)
        if start < stop:
            self.answer(206, data[start:stop], f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.answer(416)

    def stay_silent(self) -> None:
        """Answer nothing until the server ends."""
        self.is_ending.wait()
        self.close_connection = True

    def _refuses(self) -> bool:
        if self.path.startswith("/silent/"):
            self.stay_silent()
            return True
        found = re.match(r"/status/(\d+)/", self.path)
        if found is not None:
            self.answer(int(found[1]))
        return found is not None

    def answer(self, status: int, body: bytes = b"", part: str = "", size: int = -1) -> None:
        """Send a whole answer, or the beginning of one that should have another size."""
        self.send_response(status)
        if part:
            self.send_header("Content-Range", part)
        if status >= 400:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        self.end_headers()
        self.wfile.write(body)


def serve(handler: Any) -> ThreadingHTTPServer:
    """Serve on a free port in a thread, until the server is shut down."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server


@functools.cache
def http_server() -> tuple[Path, str]:
    """Return a folder, and the URL that serves its files."""
    folder = tempfile.TemporaryDirectory()
    server = serve(functools.partial(Files, directory=folder.name))

    def end() -> None:
        Files.is_ending.set()
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
