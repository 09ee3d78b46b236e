"""Trainers that rebuild a batch to move or cast it see the values that the loader delivered."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.cases import inputs_of, make_loader, make_store, read_ranks
from tests.trainers.ranks import run_script

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "a.zarr")


@needs("ignite")
def test_ignite_moves_batches(store: Path) -> None:
    from ignite.engine import Engine
    from ignite.utils import convert_tensor

    def step(_: Engine, batch: Any) -> None:
        moved = convert_tensor(batch, device="cpu")
        assert moved.names == batch.names
        seen.append(moved.inputs)

    seen: list[Any] = []
    loader = make_loader(store)
    Engine(step).run(loader, max_epochs=2, epoch_length=len(loader))
    wanted = inputs_of(store, torch.float32, 2)
    assert len(seen) == len(wanted)
    assert all(map(torch.equal, seen, wanted))


def test_fsdp_casts_batches(store: Path, tmp_path: Path) -> None:
    run_script("sharded_cases.py", store, tmp_path, num_ranks=1)
    wanted = inputs_of(store, torch.bfloat16)
    expected = [["torch.bfloat16", inputs[:, 0, 0].tolist()] for inputs in wanted]
    assert read_ranks(tmp_path, 1) == [[expected, expected]]


@needs("keras")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_trains_on_a_dataloader(backend: str, store: Path) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    run_script("keras_cases.py", store, KERAS_BACKEND=backend)


@needs("accelerate")
def test_accelerate_skips_the_first_batches(store: Path) -> None:
    from accelerate import skip_first_batches

    loader = make_loader(store)
    rest = [batch.ids.tolist() for batch in skip_first_batches(loader, 4)]
    assert rest == [batch.ids.tolist() for batch in make_loader(store)][4:]
    assert len(loader.dataset) == loader.num_samples
