"""torchrun with a training loop that uses no trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainers.cases import (
    NUM_SAMPLES,
    all_rows,
    make_loader,
    make_store,
    read_ranks,
    row,
    run_ranks,
    together,
)

pytest.importorskip("torch", reason="torchrun comes with PyTorch")
pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")


@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_share_each_epoch(world_size: int, tmp_path: Path) -> None:
    store = make_store(tmp_path / "a.zarr")
    run_ranks(world_size, "alone.py", store, tmp_path)
    rows, states = zip(*read_ranks(tmp_path, world_size), strict=True)
    found, whole = together(rows), all_rows(store, 2)
    assert found == whole
    orders = [[i for epoch, ids in whole if epoch == number for i in ids] for number in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(NUM_SAMPLES))
    assert orders[0] != orders[1]
    assert all(state == states[0] for state in states)
    with make_loader(store) as loader:
        loader.load_state_dict(states[-1])
        assert [row(1, batch) for batch in loader] == whole[-len(loader) + 2 :]
