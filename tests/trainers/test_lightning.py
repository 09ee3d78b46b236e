"""PyTorch Lightning: its epochs, its ranks, and its own checkpoints."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from zarr.storage import LocalStore

from tests.trainers.cases import (
    NUM_SAMPLES,
    Row,
    all_rows,
    inputs_of,
    make_loader,
    make_store,
    read_ranks,
    together,
)
from tests.trainers.ranks import run_script
from xloader.errors import EpochWarning
from xloader.loader.loader import Loader
from xloader.testing import CountingStore

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

if TYPE_CHECKING:
    from tests.trainers.lightning_cases import Net

pytestmark = [
    # Lightning is looked up without an import, which takes seconds in each process that collects
    # tests.
    pytest.mark.skipif(find_spec("lightning") is None, reason="Lightning is not installed"),
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    # Lightning warns about itself.
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def fit(
    loader: Loader,
    *,
    save: Path | None = None,
    load: Path | None = None,
    is_validated: bool = False,
    is_shuffled: bool = False,
    **options: Any,
) -> Net:
    from tests.trainers.lightning_cases import Net, make_trainer

    net, trainer = Net(), make_trainer(save, **options)
    others = make_loader(loader.recipe.source, shuffle=is_shuffled) if is_validated else None
    trainer.fit(net, loader, others, ckpt_path=load, weights_only=True)
    return net


def checkpoint(folder: Path, step: int) -> Path:
    return folder / f"{step}.ckpt"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lightning")


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    return make_store(folder / "a.zarr")


@pytest.fixture(scope="module")
def whole(folder: Path, store: Path) -> list[Row]:
    """Return the batches of two epochs, with a checkpoint after each."""
    return fit(make_loader(store), save=folder).rows


def test_epochs_advance_by_themselves(whole: list[Row], store: Path) -> None:
    assert whole == all_rows(store, 2)
    orders = [tuple(i for epoch, ids in whole if epoch == number for i in ids) for number in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(NUM_SAMPLES))
    assert len(set(orders)) == 2


def test_any_checkpoint_goes_on_with_what_would_have_come(
    whole: list[Row], folder: Path, store: Path
) -> None:
    longer = all_rows(store, 3)
    assert longer[: len(whole)] == whole
    for step in range(1, len(whole) + 1):
        net = fit(make_loader(store), load=checkpoint(folder, step), max_epochs=3)
        assert net.rows == longer[step:], step


@pytest.mark.parametrize(
    "options",
    [
        {"limit_train_batches": 4},
        {"reload_dataloaders_every_n_epochs": 1},
        {"accumulate_grad_batches": 2},
        {"val_check_interval": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_so_it_does_with_options_of_the_trainer(
    options: dict[str, int], tmp_path: Path, store: Path
) -> None:
    batches = all_rows(store, 2)
    num_steps = options.get("limit_train_batches", 6)
    expected = [batches[6 * epoch + step] for epoch in range(2) for step in range(num_steps)]
    whole = fit(make_loader(store), save=tmp_path, is_validated=True, **options)
    assert whole.rows == expected
    for path in sorted(tmp_path.glob("*.ckpt"))[::2]:
        net = fit(make_loader(store), load=path, is_validated=True, **options)
        step = int(path.stem) * options.get("accumulate_grad_batches", 1)
        assert net.rows == expected[step:], step


def test_a_part_of_a_shuffled_validation_is_no_repetition(store: Path) -> None:
    options = {"limit_val_batches": 3, "val_check_interval": 2, "num_sanity_val_steps": 2}
    with warnings.catch_warnings():
        # They would point at Lightning, whose warnings are not looked at elsewhere.
        warnings.simplefilter("error", EpochWarning)
        net = fit(make_loader(store), is_validated=True, is_shuffled=True, max_epochs=2, **options)
    assert len(net.validated) == 2 * 3 * 3


def test_validation_sees_each_sample_each_time(store: Path) -> None:
    net = fit(make_loader(store), is_validated=True)
    for number in (0, 1):
        ids = [i for epoch, batch in net.validated if epoch == number for i in batch]
        assert sorted(ids) == list(range(NUM_SAMPLES))


@pytest.mark.usefixtures("whole")
def test_to_go_on_reads_what_is_explained(folder: Path, store: Path) -> None:
    with make_loader(store) as loader:
        loader.load_state_dict(state_of(checkpoint(folder, 9)))
        expected = loader.explain()
    counting = CountingStore(LocalStore(store, read_only=True))
    loader = make_loader(counting)
    counting.reset()
    fit(loader, load=checkpoint(folder, 9), max_epochs=2)
    assert expected.num_steps == 3
    assert counting.num_reads == expected.num_reads


def test_a_state_loaded_by_hand_before_training(
    folder: Path, store: Path, whole: list[Row]
) -> None:
    loader = make_loader(store)
    loader.load_state_dict(state_of(checkpoint(folder, 3)))
    assert fit(loader, max_epochs=1).rows == all_rows(store, 1)[3:]


@pytest.mark.parametrize("launcher", ["torchrun", "lightning"])
def test_two_ranks_and_then_one(launcher: str, tmp_path: Path, store: Path) -> None:
    num_ranks = 2 if launcher == "torchrun" else 0
    run_script("lightning_cases.py", store, tmp_path, num_ranks=num_ranks)
    rows, sizes = zip(*read_ranks(tmp_path, 2), strict=True)
    assert sizes == (2, 2)
    expected = all_rows(store, 2)
    assert together(rows) == expected
    for step in (4, 6, 10):
        net = fit(make_loader(store), load=checkpoint(tmp_path, step))
        assert net.rows == expected[step:]


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-true", "bfloat16"), ("16-true", "float16"), ("64-true", "float64")],
)
def test_batches_are_cast(precision: str, dtype: str, tmp_path: Path, store: Path) -> None:
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


def state_of(path: Path) -> Any:
    loops = torch.load(path, weights_only=True)["loops"]
    (state,) = loops["fit_loop"]["state_dict"]["combined_loader"]
    return state
