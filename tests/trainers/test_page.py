"""The examples on the page on training run, one after another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_docs import python_blocks
from tests.trainers.cases import ROOT, run_python

CODE = """
import sys
from pathlib import Path
from tests.test_docs import run_blocks
run_blocks(sys.argv[1], Path(sys.argv[1]).read_text("utf-8"))
"""


@pytest.mark.skipif(
    not all(map(find_spec, ("torch", "lightning", "accelerate", "transformers", "keras"))),
    reason="not all trainers of the page are installed",
)
def test_its_examples_run(tmp_path: Path) -> None:
    # Trainers change a process, so the examples run in one of their own.
    run_python("-c", CODE, ROOT / "docs" / "guides" / "training.md", folder=tmp_path)
    assert (tmp_path / "checkpoints" / "step=40.ckpt").exists()
    assert (tmp_path / "accelerated" / "custom_checkpoint_0.pkl").exists()
    assert (tmp_path / "fabric.ckpt").exists()
    assert (tmp_path / "trained" / "checkpoint-60").exists()


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_its_script_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "guides" / "training.md").read_text("utf-8")
    data, script = (block for _, block in python_blocks(page)[:2])
    (tmp_path / "data.py").write_text(data)
    run_python("data.py", folder=tmp_path)
    import torch

    seen = []
    for num_epochs, num_ranks in ((1, 2), (2, 4), (3, 1)):
        (tmp_path / "train.py").write_text(
            script.replace("num_epochs=2", f"num_epochs={num_epochs}")
        )
        launch = ["-m", "tests.trainers.ranks", num_ranks]
        run_python(*launch * (num_ranks > 1), "train.py", folder=tmp_path)
        state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["loader"]
        seen.append((state["epoch"], state["step"]))
    assert seen == [(1, 0), (2, 0), (3, 0)]
