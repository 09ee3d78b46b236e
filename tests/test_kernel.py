"""In a Jupyter kernel: HTML and pictures are shown, and an interrupted loader goes on."""

from __future__ import annotations

import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import xloader

pytest.importorskip("ipykernel")
jupyter_client = pytest.importorskip("jupyter_client")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kernels get no signal there")

SETUP = """
import numpy as np, xarray as xr, xloader
ds = xr.Dataset({"t": (("time", "x"), np.arange(400.0, dtype="f4").reshape(100, 4))})
samples = xloader.open(ds).window(time=1)
loader = samples.loader(batch_size=4, output="numpy")
"""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    folder = str(Path(xloader.__file__).parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    manager = jupyter_client.KernelManager(kernel_cmd=None, kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        client.manager = manager
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def run(client: Any, code: str, *, interrupt_at: str = "") -> list[dict[str, Any]]:
    """Run a cell; return the contents of its outputs. Interrupt it once it has printed a text."""
    request = client.execute(code)
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            message = client.get_iopub_msg(timeout=1)
        except queue.Empty:
            continue
        if message["parent_header"].get("msg_id") != request:
            continue
        content = message["content"]
        if content.get("execution_state") == "idle":
            return found
        found.append(content)
        if interrupt_at and interrupt_at in content.get("text", ""):
            client.manager.interrupt_kernel()
            # A second one would meet the kernel itself.
            interrupt_at = ""
    raise AssertionError(f"the kernel did not come to rest: {found}")


@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_cell_leaves_the_loader_usable_and_loaders_have_html(client: Any) -> None:
    assert not [told for told in run(client, SETUP) if "ename" in told]
    endless = "for batch in loader:\n    break\nprint('under way', flush=True)\n"
    endless += "while True:\n    for batch in loader:\n        pass"
    told = run(client, endless, interrupt_at="under way")
    # Nothing else ends this cell. The kernel does not always send the error that ended it.
    assert {content["ename"] for content in told if "ename" in content} <= {"KeyboardInterrupt"}
    told = run(client, "print(sorted(i for b in loader for i in b.ids) == list(range(100)))")
    assert "".join(own.get("text", "") for own in told).strip() == "True"
    for name in ("samples", "loader", "loader.explain()", "loader.report()", "batch"):
        told = run(client, name)
        (data,) = [own["data"] for own in told if "data" in own]
        assert "xloader-card" in data["text/html"], name
        assert data["text/plain"], name
    run(client, "import sys; assert 'matplotlib' not in sys.modules; plan = loader.explain()")
    # Each picture is shown once, also after a semicolon.
    for cell in ("plan.plot();", "%matplotlib inline\nplan.plot();", "plan.plot()"):
        told = run(client, cell)
        assert sum("image/png" in own.get("data", {}) for own in told) == 1, cell
