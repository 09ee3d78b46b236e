"""The memory that a loader takes by itself: by numbers of the machine that stay the same."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.core.cores import find_memory_limit
from xloader.core.nbytes import MemoryShare
from xloader.errors import MemoryBudgetError, OptionError, RanksError
from xloader.loader.ranks import rank_resolver as ranks
from xloader.testing import write_store

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

GIB = 1 << 30
FIRST = MemoryShare("1/2")


def write_machine(root: Path, nbytes: float, free: float = 1.0, group: int | None = None) -> None:
    """Write the files in which Linux says how much memory there is, and how much of it is free."""
    sizes = {"MemTotal": nbytes, "MemAvailable": free * nbytes}
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    lines = [f"{name}: {int(size) >> 10} kB\n" for name, size in sizes.items()]
    (root / "proc/meminfo").write_text("".join(lines))
    if group is not None:
        (root / "proc/self/cgroup").write_text("0::/job\n")
        (root / "sys/fs/cgroup/job").mkdir(parents=True, exist_ok=True)
        (root / "sys/fs/cgroup/job/memory.max").write_text(f"{group}\n")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make this process one of a machine with so many bytes, and of no launcher."""
    for name in [*os.environ]:
        if name.startswith(("SLURM_", "OMPI_")) or name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(ranks, "find_memory_limit", partial(find_memory_limit, root=tmp_path))
    gc.collect()
    return partial(write_machine, tmp_path)


def samples_of(num_steps: int = 512, seed: int = 0) -> Any:
    """Return samples of one step, eight of which make a chunk of 32 KiB."""
    values = np.random.default_rng(seed).normal(size=(num_steps, 1024)).astype("float32")
    store = write_store(xr.Dataset({"a": (("time", "x"), values)}), {"a": (8, 1024)})
    return xloader.open(store).window(time=1)


def taken_by(loader: Any) -> int:
    """Return the bytes that the plan of a loader has."""
    return int(loader.plan.budget.memory_nbytes)


@pytest.mark.parametrize("by", ["physical", "group", "NODE", "CPU", "GPU"])
@pytest.mark.parametrize(
    ("gib", "taken"),
    [
        (1, {1: GIB // 2, 2: GIB // 4, 8: GIB // 16}),
        (4, {1: 2 * GIB, 2: GIB, 8: GIB // 4}),
        (16, {1: 8 * GIB, 2: 4 * GIB, 8: GIB}),
        (64, {1: 32 * GIB, 2: 16 * GIB, 8: 4 * GIB}),
        (48, {1: 16 * GIB, 2: 8 * GIB, 8: 2 * GIB}),
    ],
)
def test_what_is_taken(tmp_path: Path, by: str, gib: int, taken: dict[int, int]) -> None:
    # The system keeps a fiftieth for itself.
    is_physical = by == "physical"
    total = 0.98 * gib * GIB if is_physical else 999 * GIB
    write_machine(tmp_path, total, group=gib * GIB if by == "group" else None)
    slurm = {
        "NODE": {"SLURM_MEM_PER_NODE": gib << 10},
        "CPU": {"SLURM_MEM_PER_CPU": gib << 8, "SLURM_CPUS_ON_NODE": 4},
        "GPU": {"SLURM_MEM_PER_GPU": gib << 9, "SLURM_GPUS_ON_NODE": 2},
    }.get(by, {"SLURM_MEM_PER_NODE": 0})
    for num_ranks, nbytes in taken.items():
        environ = {name: str(value) for name, value in slurm.items()}
        environ["LOCAL_WORLD_SIZE"] = str(num_ranks)
        limit = find_memory_limit(16, environ, tmp_path)
        assert limit.taken_by(FIRST) == nbytes
        assert limit.taken_by(MemoryShare("25%")) == gib * GIB // num_ranks // 4
        assert limit.taken_by(MemoryShare("3 GiB/node")) == 3 * GIB // num_ranks
        assert limit.is_common == (num_ranks == 16)
        assert limit.taken_by(MemoryShare("1/4")) == nbytes // 2


@pytest.mark.parametrize(("few", "many"), [(61.9, 63.6), (30.7, 32.0), (503.1, 511.8)])
def test_equal_machines_whose_systems_keep_more_or_less(
    tmp_path: Path, few: float, many: float
) -> None:
    taken = []
    for gib in few, many:
        write_machine(tmp_path, gib * GIB)
        taken.append(find_memory_limit(1, {}, tmp_path))
    assert taken[0] == taken[1]


def test_all_ranks_may_be_here_where_no_launcher_says_how_many(tmp_path: Path) -> None:
    write_machine(tmp_path, 64 * GIB)
    limit = find_memory_limit(8, {}, tmp_path)
    assert limit.part_nbytes == 8 * GIB
    assert not limit.is_common
    assert find_memory_limit(4, {"LOCAL_WORLD_SIZE": "4"}, tmp_path).is_common
    assert find_memory_limit(1, {}, tmp_path).is_common
    # Without a number, a little is assumed.
    (tmp_path / "proc/meminfo").write_text("MemTotal: 0 kB\n")
    assert find_memory_limit(1, {}, tmp_path).taken_by(FIRST) == 2 * GIB


@pytest.mark.parametrize("memory", ["0%", "101%", "x%", "%", "-5%", "1/0%", "lots/node", "1/2"])
def test_a_memory_that_is_no_part_of_a_machine(memory: str) -> None:
    with pytest.raises(OptionError, match="memory is no"):
        samples_of().explain(memory=memory)


def test_what_is_free_changes_nothing(machine: Callable[..., None]) -> None:
    samples, seen = samples_of(), []
    for free in (1.0, 0.5, 0.01):
        machine(1 << 20, free)
        with samples.loader(batch_size=8, output="numpy") as loader:
            assert taken_by(loader) == 1 << 19
            seen.append([batch.ids.tolist() for batch in loader])
    assert seen[0] == seen[1] == seen[2]


def test_explain_says_what_was_taken_and_why(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def budget(**options: Any) -> str:
        text = str(samples_of().explain(batch_size=8, **options))
        rows = [line.split("budget")[1].strip() for line in text.splitlines() if "budget" in line]
        return "; ".join(rows)

    machine(64 * GIB)
    half = "32.0 GiB: half of 64.0 GiB physical memory"
    assert budget() == f"capped at 2.0 GiB, as all data fit; else {half}"
    assert budget(memory="50%") == half.replace("half", "50%")
    assert budget(memory="1MiB") == ""
    machine(64 * GIB, group=3 << 20)
    assert budget() == ("1.0 MiB: half of 3.0 MiB allowed by the control group, rounded down")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert budget(memory="4MiB/node") == "1.0 MiB: 4MiB/node for 4 ranks"
    machine(64 * GIB, group=4 << 20)
    part = "1.0 MiB, this rank's part of 4.0 MiB allowed by the control group for 4 ranks"
    assert budget() == f"512.0 KiB: half of {part}"


def test_data_that_fit_stay_in_memory(machine: Callable[..., None]) -> None:
    data_nbytes, batch_nbytes = 512 * 4096, 8 * 4096
    machine(64 * GIB)
    with samples_of().loader(batch_size=8, output="numpy") as loader:
        for _ in range(2):
            assert loader.plan.is_resident
            peak = loader.explain().peak_nbytes
            assert len(list(loader)) == 64
            assert loader.report().peak_nbytes <= peak
        assert loader.report().num_reads == 0
        assert peak == data_nbytes + 4 * batch_nbytes
    # All data do not fit in half of this.
    machine(4 << 20)
    with samples_of().loader(batch_size=8, output="numpy") as loader:
        assert not loader.plan.is_resident
        list(loader)
        assert loader.report().peak_nbytes <= taken_by(loader) == 2 << 20


def test_two_loaders_at_once_stay_within_the_part_of_their_rank(
    machine: Callable[..., None],
) -> None:
    machine(2 << 20)
    with (
        samples_of().loader(batch_size=4, output="numpy") as train,
        samples_of(seed=1).loader(batch_size=4, shuffle=False, output="numpy") as valid,
    ):
        assert (taken_by(train), taken_by(valid)) == (1 << 20, 1 << 19)
        for _ in zip(train, valid, strict=True):
            pass
        peaks = [loader.report().peak_nbytes for loader in (train, valid)]
        assert [peak <= most for peak, most in zip(peaks, (1 << 20, 1 << 19), strict=True)]


def test_shares_of_loaders_in_order(machine: Callable[..., None]) -> None:
    machine(16 << 20)
    samples, many = samples_of(), samples_of(4096)
    make = partial(many.loader, output="numpy")
    train, valid, third = make(batch_size=4), make(batch_size=8), make(batch_size=2)
    assert [taken_by(x) >> 20 for x in (train, valid, third)] == [8, 4, 2]
    # One that is made again takes no other share, nor does a look at what it would do.
    again = make(batch_size=4, seed=1)
    assert taken_by(again) >> 20 == 8
    assert "half of" in str(many.explain(batch_size=4))
    assert samples.loader(batch_size=4, output="numpy").options.memory == "1/16"
    # Those that are closed or gone leave theirs to others, also where only Python's search for
    # cycles finds that they are gone.
    valid.close()
    third.cycle = third
    del third
    assert [make(batch_size=16, memory=m).options.memory for m in (None, "1MiB")] == ["1/4", "1MiB"]
    fourth, fifth = make(batch_size=16), make(batch_size=32)
    assert [fourth.options.memory, fifth.options.memory] == ["1/4", "1/8"]
    # In another process it is the same.
    assert taken_by(pickle.loads(pickle.dumps(fourth))) == taken_by(copy.copy(fourth)) == 4 << 20


def test_a_rollout_and_interleaved_sets_have_one_share(machine: Callable[..., None]) -> None:
    machine(4 << 20)
    first, second = samples_of(), samples_of(seed=1)
    both = xloader.interleave({"a": (first, 1), "b": (second, 1)})
    with both.loader(batch_size=8, output="numpy") as mixed:
        assert mixed.options.memory == "1/2"
        shares = mixed.explain().shares.values()
        assert sum(share.memory_nbytes for share in shares) <= 2 << 20
        assert "budget         2.0 MiB: half of 4.0 MiB physical memory" in str(mixed.explain())
        with xloader.Rollout(
            lambda epoch: (first, second)[epoch % 2], batch_size=8, output="numpy"
        ) as rollout:
            taken = [taken_by(rollout) for _ in range(2) if list(rollout)]
            assert taken == [1 << 20, 1 << 20]
            assert len(both.explain(batch_size=8).sets) == 2
            assert first.explain(batch_size=4)._budget.startswith("512.0 KiB: 1/8 of 4.0 MiB")


def test_a_state_of_another_machine_is_taken(machine: Callable[..., None]) -> None:
    samples = samples_of()
    machine(3 << 20)
    with samples.loader(batch_size=8, output="numpy") as loader:
        ids = [batch.ids.tolist() for batch in loader]
        loader.set_epoch(0)
        for _ in loader:
            state = json.loads(json.dumps(loader.state_dict()))
            break
    # Its share would be half of that.
    machine(3 << 19)
    with samples.loader(batch_size=8, output="numpy") as loader:
        assert taken_by(loader) == 1 << 19
        loader.load_state_dict(state)
        assert [batch.ids.tolist() for batch in loader] == ids[1:]
        assert loader.explain()._budget == "1.0 MiB, as in the state that was loaded"
    machine(3 << 18)
    with (
        samples.loader(batch_size=8, output="numpy") as loader,
        pytest.raises(MemoryBudgetError, match="the plan of the state needs more"),
    ):
        loader.load_state_dict(state)


def test_ranks_that_cannot_agree(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(8 << 20)
    samples = samples_of()
    loader = samples.loader(batch_size=8, world=xloader.World(1, 4), output="numpy")
    for use in (len, lambda loader: loader.explain(), iter):
        with pytest.raises(RanksError, match="memory= is needed"):
            use(loader)
    two = xloader.interleave({"a": (samples, 1), "b": (samples, 1)})
    with pytest.raises(RanksError, match="memory= is needed"):
        len(two.loader(batch_size=8, world=xloader.World(1, 4), output="numpy"))
    options = {"batch_size": 8, "world": xloader.World(1, 4), "output": "numpy"}
    assert len(samples.loader(**options, memory="1MiB")) == 16
    # Where all data fit, and where all ranks are here, there is nothing to agree on.
    machine(64 << 20)
    assert len(samples.loader(**options)) == 16
    loader.close()
    machine(8 << 20)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert taken_by(samples.loader(**options)) == 1 << 20


class Store:
    """The store of a process group whose other rank has said what it has, or has not."""

    def __init__(self, **values: str) -> None:
        self.values = values

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def wait(self, keys: list[str]) -> None:
        if not set(keys) <= set(self.values):
            raise RuntimeError("timed out")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]


def test_a_rank_whose_others_make_no_such_loader(
    machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(2 << 20)
    store = Store()
    monkeypatch.setattr(ranks, "process_group", lambda: store)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = samples_of().loader(batch_size=4, output="numpy")
    # Written down as it was made, so that others need not wait for its use.
    assert list(store.values) == ["xloader/memory/1"]
    with pytest.raises(RanksError, match=r"made no loader.*timed out.*World\(\)"):
        len(loader)
    assert len(samples_of().loader(batch_size=4, world=xloader.World(), output="numpy")) == 128
    mine = json.loads(store.values["xloader/memory/1"])
    store.values["xloader/memory/0"] = json.dumps({**mine, "nbytes": mine["nbytes"] // 2})
    assert taken_by(loader) == 1 << 18


RANK = """
import json, sys
import torch.distributed as dist
import xloader
from torch.utils.data import DataLoader
from xloader.torch import ChunkSampler, IterableDataset

def main():
    store, rank = sys.argv[1], int(sys.argv[2])
    samples = xloader.open(store).window(time=1)
    early = samples.loader(batch_size=8, output="numpy")
    dist.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
    late = samples.loader(batch_size=4, output="numpy")
    seen = [[i for batch in loader for i in batch.ids.tolist()] for loader in (early, late)]
    memory = [loader.plan.budget.memory_nbytes for loader in (early, late)]
    early.close(), late.close()
    sampler = ChunkSampler(samples, 8, num_workers=2)
    seen.append(list(sampler))
    dataset = IterableDataset(samples, batch_size=8)
    batches = DataLoader(dataset, None, num_workers=2, multiprocessing_context="spawn")
    seen.append([i for batch in batches for i in batch.ids.tolist()])
    dist.barrier()
    print(json.dumps([memory, seen]))
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Slurm's variables stand for other machines")
def test_ranks_on_unequal_machines_take_what_the_smallest_allows(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    values = np.random.default_rng(0).normal(size=(4096, 1024)).astype("float32")
    dataset = xr.Dataset({"a": (("time", "x"), values)})
    store, script = tmp_path / "store.zarr", tmp_path / "rank.py"
    dataset.to_zarr(store, encoding={"a": {"chunks": (8, 1024)}}, consolidated=False)
    script.write_text(RANK)
    processes = []
    # On its own machine, the second rank would keep all data.
    for rank, mebibytes in enumerate((16, 64)):
        environ = {**os.environ, "SLURM_MEM_PER_NODE": str(mebibytes), "LOCAL_WORLD_SIZE": "1"}
        environ["PYTHONPATH"] = str(Path(xloader.__file__).parents[1])
        processes.append(
            subprocess.Popen(
                [sys.executable, "-W", "ignore", script, store, str(rank), tmp_path / "group"],
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    outputs = [process.communicate(timeout=160)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    (memory, first), (other_memory, second) = (json.loads(out.splitlines()[-1]) for out in outputs)
    assert memory == other_memory == [8 << 20, 4 << 20]
    for ids, other_ids in zip(first, second, strict=True):
        assert sorted(ids + other_ids) == list(range(4096))


def test_a_loader_that_cannot_be_made_takes_no_share() -> None:
    samples = xloader.open(xr.Dataset({"t": (("time", "x"), np.zeros((40, 8)))})).window(time=1)
    with pytest.raises(OptionError) as kept:
        samples.loader(batch_size=2000, steps=3, output="numpy")
    with samples.loader(batch_size=4, output="numpy") as loader:
        assert str(loader.options.memory) == "1/2"
        with samples.loader(batch_size=8, output="numpy") as other:
            assert str(other.options.memory) == "1/4"
    assert kept.value
