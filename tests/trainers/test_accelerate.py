"""accelerate: a prepared loader stays as it is, and checkpoints resume it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainers.cases import (
    all_rows,
    make_loader,
    make_store,
    read_ranks,
    row,
    together,
)
from tests.trainers.ranks import run_script

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed"),
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
]


def test_two_ranks_and_then_one(tmp_path: Path) -> None:
    store = make_store(tmp_path / "a.zarr")
    run_script("accelerated.py", store, tmp_path, num_ranks=2)
    rows, again, untouched = zip(*read_ranks(tmp_path, 2), strict=True)
    assert untouched == (True, True)
    whole = all_rows(store, 2)
    assert together(rows) == whole
    with make_loader(store) as loader:
        tail = whole[-len(loader) + 2 :]
        assert together(again) == tail
        saved = tmp_path / "checkpoint" / "custom_checkpoint_0.pkl"
        loader.load_state_dict(torch.load(saved, weights_only=True))
        assert [row(1, batch) for batch in loader] == tail
