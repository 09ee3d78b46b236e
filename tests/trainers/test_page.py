"""The examples of the pages on trainers run, one after another."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.test_docs import python_blocks
from tests.trainers.ranks import ROOT, run_script
from xloader.testing import tutorial_store

GUIDES = ROOT / "docs" / "guides"
SEVERAL_GPUS = GUIDES / "several_gpus.md"


@pytest.mark.skipif(
    not all(map(find_spec, ("torch", "lightning", "accelerate"))),
    reason="not all trainers of the page are installed",
)
def test_the_page_on_several_gpus_runs(tmp_path: Path) -> None:
    # Trainers change a process, so the examples run in one of their own.
    run_script("page.py", SEVERAL_GPUS, folder=tmp_path)
    assert list((tmp_path / "checkpoints").glob("*step=40.ckpt"))
    assert (tmp_path / "accelerated" / "custom_checkpoint_0.pkl").exists()
    assert (tmp_path / "fabric.ckpt").exists()


@pytest.mark.skipif(
    not all(map(find_spec, ("torch", "transformers", "keras"))),
    reason="not all trainers of the page are installed",
)
def test_the_page_on_pytorch_runs(tmp_path: Path) -> None:
    run_script("page.py", GUIDES / "pytorch.md", folder=tmp_path)
    assert (tmp_path / "trained" / "checkpoint-40").exists()


@pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")
@pytest.mark.skipif(not find_spec("torch"), reason="PyTorch is not installed")
def test_the_script_goes_on_with_other_numbers_of_ranks(tmp_path: Path) -> None:
    import torch

    _, script = (block for _, block in python_blocks(SEVERAL_GPUS.read_text("utf-8"))[:2])
    assert "train(2" in script
    tutorial_store(tmp_path / "weather.zarr")
    seen = []
    for num_epochs, num_ranks in ((1, 2), (2, 4), (3, 0)):
        (tmp_path / "train.py").write_text(script.replace("train(2", f"train({num_epochs}"))
        run_script(tmp_path / "train.py", num_ranks=num_ranks, folder=tmp_path)
        state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["loader"]
        seen.append((state["epoch"], state["step"]))
    assert seen == [(1, 0), (2, 0), (3, 0)]
