"""The page on training: its examples run, one after another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainers.cases import ROOT, run_python

CODE = """
import sys
from pathlib import Path
from tests.test_docs import run_blocks
run_blocks(sys.argv[1], Path(sys.argv[1]).read_text("utf-8"))
"""


@pytest.mark.skipif(
    not all(find_spec(name) for name in ("torch", "lightning", "accelerate")),
    reason="PyTorch, Lightning and accelerate are not all installed",
)
def test_its_examples_run(tmp_path: Path) -> None:
    # Trainers leave much behind in a process.
    run_python("-c", CODE, ROOT / "docs" / "training.md", folder=tmp_path)
    assert (tmp_path / "checkpoints" / "step=40.ckpt").exists()
    assert (tmp_path / "accelerated" / "custom_checkpoint_0.pkl").exists()
