"""The examples on the page on training run, one after another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_docs import python_blocks
from tests.trainers.ranks import ROOT, run_script

PAGE = ROOT / "docs" / "guides" / "training.md"


@pytest.mark.skipif(
    not all(map(find_spec, ("torch", "lightning", "accelerate", "transformers", "keras"))),
    reason="not all trainers of the page are installed",
)
def test_its_examples_run(tmp_path: Path) -> None:
    # Trainers change a process, so the examples run in one of their own.
    run_script("page.py", PAGE, folder=tmp_path)
    assert (tmp_path / "checkpoints" / "step=40.ckpt").exists()
    assert (tmp_path / "accelerated" / "custom_checkpoint_0.pkl").exists()
    assert (tmp_path / "fabric.ckpt").exists()
    assert (tmp_path / "trained" / "checkpoint-60").exists()


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_its_script_goes_on_with_other_numbers_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, script = (block for _, block in python_blocks(PAGE.read_text("utf-8"))[:2])
    monkeypatch.chdir(tmp_path)
    exec(data, {})
    import torch

    seen = []
    for num_epochs, num_ranks in ((1, 2), (2, 4), (3, 0)):
        (tmp_path / "train.py").write_text(
            script.replace("num_epochs=2", f"num_epochs={num_epochs}")
        )
        run_script(tmp_path / "train.py", num_ranks=num_ranks, folder=tmp_path)
        state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["loader"]
        seen.append((state["epoch"], state["step"]))
    assert seen == [(1, 0), (2, 0), (3, 0)]
