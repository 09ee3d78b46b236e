"""Training that is killed on two ranks continues on one, with the same global batches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from examples import restart
from examples.restart import Comparison, LoggedStep, compare
from tests.trainers.ranks import ROOT, run_script
from xloader.errors import XloaderError
from xloader.testing.waves import WaveSpec

SPEC = WaveSpec(num_steps=100, num_lats=8, num_lons=16)
"""74 samples to train on, so the last of 5 steps of an epoch has padding on one rank."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def launch(num_ranks: int, *arguments: object, is_killed: bool = False) -> None:
    """Train under torchrun's agent, in ranks that need not import PyTorch."""
    ended = pytest.raises(AssertionError, match="SIGKILL") if is_killed else nullcontext()
    with ended:
        run_script(ROOT / "examples" / "ranked.py", *arguments, num_ranks=num_ranks)


def test_the_loss_goes_on_on_the_same_global_batches(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.setattr(restart, "_launch", launch)
    found = compare(folder, SPEC, epochs=2, every=2, kill_at=7)
    assert [(step.epoch, step.step) for step in found.whole] == [
        (epoch, step) for epoch in range(2) for step in range(5)
    ]
    assert len({step.ids for step in found.whole}) == 10
    assert {step.ranks for step in found.killed} == {2}
    assert {step.ranks for step in found.restarted} == {1}
    assert (found.restarted[0].epoch, found.restarted[0].step) == (1, 1)
    assert found.is_complete
    assert found.is_same_batches
    assert found.loss_difference < 1e-4


def test_a_training_that_fails_says_what_it_said(folder: Path) -> None:
    """Here torchrun itself is started."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(XloaderError, match="--epochs"):
        compare(folder, SPEC, epochs=0, every=2, kill_at=1)


STEPS = tuple(LoggedStep(0, number, f"{number:012}", 1.0, 2) for number in range(4))


def test_what_a_comparison_finds() -> None:
    good = Comparison(STEPS, STEPS[:3], STEPS[2:])
    assert (good.is_complete, good.is_same_batches, good.loss_difference) == (True, True, 0.0)
    assert not Comparison(STEPS, STEPS[:1], STEPS[2:]).is_complete
    assert not Comparison(STEPS, STEPS[:3], STEPS[2:3]).is_complete
    others = (replace(STEPS[2], ids="other", loss=1.5), STEPS[3])
    bad = Comparison(STEPS, STEPS[:3], others)
    assert (bad.is_complete, bad.is_same_batches, bad.loss_difference) == (True, False, 0.5)
    assert "    0    2  000000000002     1.000000  1.000000          1.500000" in str(bad)
