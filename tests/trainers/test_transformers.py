"""transformers.Trainer: epochs, two ranks, and a resume in the middle of an epoch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.trainers.cases import (
    GLOBAL_BATCH,
    NUM_SAMPLES,
    make_store,
    read_ranks,
)
from tests.trainers.ranks import run_script

pytestmark = [
    pytest.mark.skipif(
        not all(find_spec(name) for name in ("torch", "transformers", "accelerate")),
        reason="PyTorch, transformers and accelerate are not all installed",
    ),
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
]


@pytest.mark.parametrize("num_ranks", [0, 2], ids=["alone", "two ranks"])
def test_a_resumed_training_sees_the_samples_of_an_undisturbed_one(
    num_ranks: int, tmp_path: Path
) -> None:
    store = make_store(tmp_path / "a.zarr")
    run_script("transformers_cases.py", store, tmp_path, num_ranks=num_ranks)
    ranks = read_ranks(tmp_path, max(num_ranks, 1))
    num_steps = NUM_SAMPLES // GLOBAL_BATCH
    for door in ("loader", "data_loader"):
        for found in ranks:
            whole, before, after = found[door]
            assert len(whole) == 3 * num_steps
            assert before + after == whole
        for epoch in range(3):
            seen = [v for found in ranks for e, b in found[door][0] if e == epoch for v in b]
            assert len(set(seen)) == len(seen) == num_steps * GLOBAL_BATCH
