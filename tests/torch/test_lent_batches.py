"""Batches of a ``DataLoader``'s workers that are lent: right values, never overwritten, none left.

A tensor is *lent* if its memory is a slot of a worker, and not a copy that PyTorch has made.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import xarray as xr
from torch.utils.data import DataLoader

from tests.torch.waves import MEMORY, check_values, make_dataset, samples_of, write_waves
from xloader import Batch, Samples
from xloader.engine.buffers import ArrayKind
from xloader.engine.shared_slots import SharedMemory
from xloader.errors import WorkersError
from xloader.torch import IterableDataset, collate, data_loader, lent_slots
from xloader.torch.lent_slots import Borrower, Lender, LentBatches

pytestmark = [
    pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has mapped"),
]

NUM_STEPS = 240
NUM_SLOTS = 5
"""Slots of a worker: one more than its plan's batches, which are 2 and PyTorch's
``prefetch_factor``."""


@pytest.fixture(scope="module")
def dataset() -> xr.Dataset:
    return make_dataset(NUM_STEPS)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return samples_of(write_waves(tmp_path_factory.mktemp("stores") / "waves.zarr", NUM_STEPS))


@pytest.fixture(autouse=True)
def _no_slot_is_left() -> Iterator[None]:
    """Whatever a test does, this process has neither memory nor a descriptor of a slot then."""
    yield
    gc.collect()
    assert mapped_slots() == []
    assert open_slots() == []


def mapped_slots(pid: int | str = "self") -> list[tuple[int, int]]:
    """First and last address of the slots that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    edges = [line.split()[0].split("-") for line in lines if "/memfd:xloader" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in edges]


def open_slots() -> list[str]:
    found = []
    for one in Path("/proc/self/fd").iterdir():
        # The folder's own descriptor is closed by now.
        if one.is_symlink():
            found.append(str(one.readlink()))
    return [name for name in found if "memfd:xloader" in name]


def is_lent(tensor: torch.Tensor) -> bool:
    return any(begin <= tensor.data_ptr() < end for begin, end in mapped_slots())


def mostly(lent: Sequence[bool]) -> bool:
    """Whether at least every second one was lent.

    Not each one must be: a worker that runs ahead may need memory for one more batch just before
    the loop gives a slot back.
    """
    return 2 * sum(lent) >= len(lent) > 0


def mapped_loader(samples: Samples, **options: Any) -> DataLoader[Any]:
    return data_loader(samples, 16, memory=MEMORY, **{"num_workers": 2, **options})


def stream_loader(samples: Samples, batch_size: int | None = 16, **options: Any) -> DataLoader[Any]:
    dataset = IterableDataset(samples, batch_size, memory=MEMORY)
    settings: dict[str, Any] = {
        "num_workers": 2,
        "multiprocessing_context": "forkserver",
        "persistent_workers": True,
        **options,
    }
    return DataLoader(dataset, batch_size=None, **settings)


DOORS: dict[str, Callable[..., DataLoader[Any]]] = {
    "data_loader": mapped_loader,
    "IterableDataset": stream_loader,
}


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@pytest.mark.parametrize(
    ("door", "method"),
    [
        *(("data_loader", method) for method in ("fork", "forkserver", "spawn")),
        *(("IterableDataset", method) for method in ("fork", "forkserver")),
    ],
)
def test_batches_of_a_loop_are_lent(
    samples: Samples, dataset: xr.Dataset, door: str, method: str
) -> None:
    # To spawn a process takes seconds.
    num_workers = 1 if method == "spawn" else 2
    loader = DOORS[door](samples, multiprocessing_context=method, num_workers=num_workers)
    for _ in range(2):
        ids, lent = [], []
        for batch in loader:
            check_values(dataset, batch)
            lent.append(all(map(is_lent, batch)))
            # The user may write to a batch.
            batch.inputs.fill_(-1)
            ids += batch.ids.tolist()
        assert sorted(ids) == list(range(NUM_STEPS))
        assert mostly(lent)


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@pytest.mark.parametrize("door", DOORS)
def test_batches_that_are_kept_stay_as_they_are(
    samples: Samples, dataset: xr.Dataset, door: str
) -> None:
    loader = DOORS[door](samples)
    kept: list[Batch] = []
    for _ in range(2):
        kept += loader
    lent = [batch for batch in kept if is_lent(batch.inputs)]
    # Beyond the slots, PyTorch's copies come.
    assert 0 < len(lent) <= 2 * NUM_SLOTS < len(kept)
    for batch in kept:
        check_values(dataset, batch)
    # One field of a batch keeps its slot, and so does one row.
    parts = [(batch.ids, batch.targets[3:5]) for batch in kept]
    del kept, batch, lent
    for other in loader:
        check_values(dataset, other)
    for ids, rows in parts:
        np.testing.assert_array_equal(rows[:, 0, 0], dataset.u[ids[3:5]])
    del parts, rows, other
    # All slots are free again.
    assert mostly([is_lent(batch.inputs) for _ in range(2) for batch in loader])


def as_is(batch: Any) -> Any:
    return batch


def take_apart(samples: Any) -> Any:
    """Tensors over a part of the batch, one that is new, and other things."""
    inputs = collate(samples).inputs
    ids = torch.from_numpy(collate(samples).ids)
    return {"part": inputs[1:, ..., 2:5], "new": inputs + 1, "ids": ids, "names": ["t", None]}


@pytest.mark.parametrize("door", DOORS)
def test_what_a_collate_fn_returns_is_lent_where_it_can_be(
    samples: Samples, dataset: xr.Dataset, door: str
) -> None:
    lent = []
    for found in DOORS[door](samples, collate_fn=take_apart, persistent_workers=False):
        values = dataset.t[found["ids"].numpy()].to_numpy()
        np.testing.assert_array_equal(found["part"][:, 0, 0], values[1:, :, 2:5])
        np.testing.assert_array_equal(found["new"][:, 0, 0], values + 1)
        assert found["names"] == ["t", None]
        lent.append(is_lent(found["part"]))
        assert not is_lent(found["new"])
    assert mostly(lent)


def test_arrays_and_single_samples_arrive(samples: Samples, dataset: xr.Dataset) -> None:
    for batch in stream_loader(samples, collate_fn=as_is, persistent_workers=False):
        assert isinstance(batch.inputs, np.ndarray)
        check_values(dataset, batch)
    kept = list(stream_loader(samples, None, persistent_workers=False))
    assert is_lent(kept[0][0])
    order = [batch.ids for batch in IterableDataset(samples, 32, memory=MEMORY)]
    assert len(kept) == NUM_STEPS == sum(map(len, order))
    found = np.sort(np.stack([inputs.numpy().ravel() for inputs, _ in kept]), axis=0)
    np.testing.assert_array_equal(found, np.sort(dataset.t.to_numpy().reshape(NUM_STEPS, -1), 0))


def test_bfloat16_is_lent(samples: Samples, dataset: xr.Dataset) -> None:
    stream = IterableDataset(samples, 16, memory=MEMORY)
    loader: DataLoader[Any] = DataLoader(
        stream, None, num_workers=1, collate_fn=narrow, multiprocessing_context="forkserver"
    )
    lent = []
    for inputs, ids in loader:
        lent.append(is_lent(inputs))
        assert inputs.dtype == torch.bfloat16
        expected = torch.from_numpy(dataset.t[ids].to_numpy()).to(torch.bfloat16)
        assert torch.equal(inputs[:, 0, 0], expected)
    assert mostly(lent)


def narrow(batch: Batch) -> Any:
    """Inputs as bfloat16, in the memory of the batch."""
    inputs = collate(batch).inputs
    half = inputs.view(torch.bfloat16)[..., : inputs.shape[-1]]
    return half.copy_(inputs.clone()), batch.ids


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
@pytest.mark.parametrize("door", DOORS)
def test_loops_that_end_early_lose_no_slot(
    samples: Samples, dataset: xr.Dataset, door: str
) -> None:
    loader = DOORS[door](samples, multiprocessing_context="forkserver")
    for number in range(3 * NUM_SLOTS):
        if door == "IterableDataset":
            loader.dataset.set_epoch(number)  # type: ignore[attr-defined]
        for index, batch in enumerate(loader):
            check_values(dataset, batch)
            if index == number % 4:
                break
    assert mostly([is_lent(batch.inputs) for batch in loader])


@pytest.mark.parametrize("door", DOORS)
def test_of_a_batch_that_outlives_its_workers_only_its_slot_is_left(
    samples: Samples, dataset: xr.Dataset, door: str
) -> None:
    loader = DOORS[door](samples)
    iterator = iter(loader)
    for _ in range(6):
        batch = next(iterator)
    assert len(mapped_slots()) > 2
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    assert any(mapped_slots(pid) for pid in pids)
    del iterator, loader
    gc.collect()
    assert len(mapped_slots()) == 1
    check_values(dataset, batch)


def test_a_worker_that_is_killed_leaves_nothing(samples: Samples, dataset: xr.Dataset) -> None:
    loader = mapped_loader(samples, persistent_workers=False)
    iterator = iter(loader)
    batch = next(iterator)
    for worker in iterator._workers:  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGKILL)
    # As without slots: PyTorch finds out, or a descriptor is asked for that the worker had.
    with pytest.raises((RuntimeError, OSError, EOFError)):
        list(iterator)
    check_values(dataset, batch)
    assert is_lent(batch.inputs)
    del iterator, loader, worker
    gc.collect()
    check_values(dataset, batch)
    assert len(mapped_slots()) == 1


def no_memory(_: int) -> None:
    def refuse(nbytes: int) -> Any:
        raise WorkersError("no memory")

    lent_slots.SharedMemory = refuse  # type: ignore[assignment, misc]


@pytest.mark.parametrize("door", DOORS)
def test_without_shared_memory_batches_are_copied(
    samples: Samples, dataset: xr.Dataset, door: str
) -> None:
    loader = DOORS[door](samples, worker_init_fn=no_memory)
    for batch in loader:
        check_values(dataset, batch)
        assert not is_lent(batch.inputs)


def test_slots_are_one_more_than_the_batches_of_the_plan(samples: Samples) -> None:
    loader = mapped_loader(samples)
    kept = list(loader)
    (nbytes,) = {sum(tensor.nbytes for tensor in batch) for batch in kept}
    allowed = loader.sampler.explain().peak_nbytes  # type: ignore[attr-defined]
    slots = mapped_slots()
    assert len(slots) == 2 * NUM_SLOTS
    assert 2 * (NUM_SLOTS - 1) * nbytes <= allowed
    # A slot is a batch, a header and what is left of a page.
    assert all(end - begin <= nbytes + 256 + 4096 for begin, end in slots)


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
def test_a_forked_child_gives_no_slot_back(samples: Samples, dataset: xr.Dataset) -> None:
    loader = mapped_loader(samples)
    kept = [batch for batch, _ in zip(loader, range(3), strict=False)]
    child = os.fork()
    if not child:
        try:
            kept.clear()
            gc.collect()
            # It reads with workers of its own.
            for batch in mapped_loader(samples, multiprocessing_context="fork"):
                check_values(dataset, batch)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(2):
        for batch in loader:
            check_values(dataset, batch)
    for batch in kept:
        check_values(dataset, batch)


# One process


KINDS = [ArrayKind((2, 3, 4), np.dtype("f4")), ArrayKind((5,), np.dtype("u1"))]


@pytest.fixture
def lender() -> Lender:
    return Lender()


def batches_of(lender: Lender, num_slots: int = 2) -> LentBatches:
    return LentBatches(KINDS, 1, lender=lender, num_slots=num_slots)


def test_without_a_holder_an_array_is_copied(lender: Lender) -> None:
    batches = batches_of(lender)
    array = batches.take(KINDS)[1]
    array[:] = 3
    loan = lender.lend(array)
    assert loan is not None
    # The memory was sent already, to another process.
    loan = loan._replace(memory=None)
    copy = Borrower().borrow(loan)
    assert copy.tolist() == [3] * 5
    array[:] = 4
    assert copy.tolist() == [3] * 5
    # Two tensors of a message bring the same object.
    memory = SharedMemory.of_process(loan.lender, loan.file)
    both = [lender.lend(array[:3]), lender.lend(array[3:])]
    borrower = Borrower()
    found = [borrower.borrow(one._replace(memory=memory)) for one in both if one is not None]
    assert [one.tolist() for one in found] == [[4] * 3, [4] * 2]
    with pytest.raises(WorkersError, match="not there any more"):
        Borrower().borrow(loan._replace(key=b"another!"))
    with pytest.raises(WorkersError, match="cannot be opened"):
        Borrower().borrow(loan._replace(file=10**6))


class Holder:
    """What the slots are kept with."""


def test_slots_that_are_given_up_are_dropped(lender: Lender) -> None:
    holder, borrower = Holder(), Borrower()

    def send(array: Any) -> Any:
        loan = lender.lend(array)
        assert loan is not None
        if loan.memory is None:
            return loan
        return loan._replace(memory=SharedMemory.of_process(loan.lender, loan.file))

    batches = batches_of(lender)
    first = batches.take(KINDS)
    array = borrower.borrow(send(first[0]), holder)
    late = send(first[1])
    assert late.memory is None
    # In both roles, this process has mapped the slot.
    assert len(mapped_slots()) == 2
    # A new plan: the worker makes other slots. One array of the old slot is still under way.
    batches = batches_of(lender)
    del first, array
    second = batches.take(KINDS)
    kept = [borrower.borrow(send(second[0]), holder)]
    assert len(mapped_slots()) == 3
    assert borrower.borrow(late, holder).nbytes == 5
    others = batches_of(lender)
    third = others.take(KINDS)
    kept.append(borrower.borrow(send(third[0]), holder))
    assert len(mapped_slots()) == 4
    del batches, others, second, third, kept, late
