"""Trainers that rebuild a batch to move or cast it see the values that the loader delivered."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.cases import ROOT, make_loader, make_store, read_ranks, run_python, run_ranks

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
]


def needs(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(name) is None, reason=f"{name} is not installed")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "a.zarr")


def inputs_of(store: Path, dtype: Any, num_epochs: int = 1) -> list[Any]:
    loader = make_loader(store)
    return [batch.inputs.to(dtype) for _ in range(num_epochs) for batch in loader]


@needs("lightning")
@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-true", "bfloat16"), ("16-true", "float16"), ("64-true", "float64")],
)
def test_lightning_casts_batches(precision: str, dtype: str, tmp_path: Path, store: Path) -> None:
    from tests.trainers.lightning_cases import Net, make_trainer

    class Recorder(Net):
        def training_step(self, batch: Any, _: int) -> Any:
            seen.append(batch.inputs)
            assert batch.is_padding is None
            return (self.linear(batch.inputs) - batch.targets).square().mean()

    wanted = inputs_of(store, getattr(torch, dtype), 2)
    for load, expected in ((None, wanted), (tmp_path / "8.ckpt", wanted[8:])):
        seen: list[Any] = []
        trainer = make_trainer(tmp_path, precision=precision)
        trainer.fit(Recorder(), make_loader(store), ckpt_path=load, weights_only=True)
        assert len(seen) == len(expected)
        assert all(map(torch.equal, seen, expected))


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
    run_ranks(1, "sharded_cases.py", store, tmp_path)
    wanted = inputs_of(store, torch.bfloat16)
    expected = [["torch.bfloat16", inputs[:, 0, 0].tolist()] for inputs in wanted]
    assert read_ranks(tmp_path, 1) == [[expected, expected]]


@needs("keras")
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_trains_on_a_dataloader(
    backend: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setitem(os.environ, "KERAS_BACKEND", backend)
    run_python(ROOT / "tests" / "trainers" / "keras_cases.py", store)


@needs("accelerate")
def test_accelerate_skips_the_first_batches(store: Path) -> None:
    from accelerate import skip_first_batches

    loader = make_loader(store)
    rest = [batch.ids.tolist() for batch in skip_first_batches(loader, 4)]
    assert rest == [batch.ids.tolist() for batch in make_loader(store)][4:]
    assert len(loader.dataset) == loader.num_samples
