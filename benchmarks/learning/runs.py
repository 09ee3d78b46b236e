"""All trainings of all orders and seeds, and the file that keeps those that are done."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.learning.cases import Case, make_blocks, make_waves
from benchmarks.learning.orders import Way, draw_orders
from benchmarks.learning.training import Schedule, Settings, evaluate, train
from xloader.errors import PlanWarning

SETTINGS: Final = {
    "waves": Settings(num_epochs=2, batch_size=16, peak_rate=2e-3),
    "store": Settings(num_epochs=3, batch_size=16, peak_rate=2e-3),
}


@dataclass(frozen=True)
class Source:
    """Where the data of a case come from.

    Parameters
    ----------
    name : {"waves", "store"}
        The case.
    folder : str
        Where stores are made.
    path : str
        The user's store, of the case "store".
    variables : tuple of str
        Its variables to forecast; all maps over time if empty.
    time_dim : str
        Its dimension of time.
    lead, coarsen : int
        Steps from input to target, and points of a coarser row or column.
    """

    name: str
    folder: str
    path: str = ""
    variables: tuple[str, ...] = ()
    time_dim: str = "time"
    lead: int = 1
    coarsen: int = 1

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the results depend on, which are kept only beside the same."""
        if self.name == "waves":
            return {}
        own = asdict(self) | {"path": Path(self.path).name}
        return {name: own[name] for name in own if name not in ("name", "folder")}


@dataclass(frozen=True)
class Run:
    """The result of one training.

    Parameters
    ----------
    case, way : str
        Names of the data and of the order.
    seed : int
        Seed of the initial weights and of the orders.
    loss : float
        Mean squared error on the validation set.
    num_samples, num_steps : int
        Samples of the training, and its steps.
    num_reads, num_predicted : float
        Chunks that an epoch reads, as counted and as predicted: the mean of the epochs.
    read_amplification, mixing, full_mixing, wide_mixing, wide_full_mixing : float
        Of an epoch: the mean of the epochs.
    seconds : float
        Wall time of drawing the orders and of training.
    """

    case: str
    way: str
    seed: int
    loss: float
    num_samples: int
    num_steps: int
    num_reads: float
    num_predicted: float
    read_amplification: float
    mixing: float
    full_mixing: float
    wide_mixing: float
    wide_full_mixing: float
    seconds: float


@functools.lru_cache
def make_case(source: Source) -> Case:
    """The data of a case, made once in each process."""
    if source.name == "waves":
        return make_waves(Path(source.folder))
    own = Path(source.folder) / f"process-{os.getpid()}"
    return make_blocks(
        source.path,
        own,
        variables=source.variables,
        time_dim=source.time_dim,
        lead=source.lead,
        coarsen=source.coarsen,
    )


def run(source: Source, settings: Settings, way: Way, seed: int) -> Run:
    """Train once. For a seed, every way begins with the same weights."""
    torch.set_num_threads(1)
    case = make_case(source)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        # Some plans are meant to mix badly here.
        warnings.simplefilter("ignore", PlanWarning)
        warnings.simplefilter("ignore", PlanWarning)
        epochs = list(
            draw_orders(
                way,
                case.tiled,
                batch_size=settings.batch_size,
                num_epochs=settings.num_epochs,
                seed=seed,
            )
        )
    net = case.make_net(seed)
    train(net, case.training, [epoch.ids for epoch in epochs], settings)
    seconds = time.perf_counter() - begin

    def mean(name: str) -> float:
        """The mean of a figure over the epochs."""
        return float(sum(getattr(epoch, name) for epoch in epochs) / len(epochs))

    num_samples = len(case.tiled.tile_of)
    return Run(
        case=case.name,
        way=way.name,
        seed=seed,
        loss=evaluate(net, case.validation),
        num_samples=num_samples,
        num_steps=settings.num_epochs * -(-num_samples // settings.batch_size),
        num_reads=mean("num_reads"),
        num_predicted=mean("num_predicted"),
        read_amplification=mean("read_amplification"),
        mixing=mean("mixing"),
        full_mixing=mean("full_mixing"),
        wide_mixing=mean("wide_mixing"),
        wide_full_mixing=mean("wide_full_mixing"),
        seconds=seconds,
    )


class Kept:
    """The trainings that are done, in a JSON file.

    Parameters
    ----------
    path : pathlib.Path, optional
        The file. Without it, results are kept in memory only.
    identity : dict
        Settings and data. A file of others is refused.
    """

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self._path = path
        # As JSON gives it back: with lists in place of tuples.
        self._identity = json.loads(json.dumps(identity))
        self.runs: list[Run] = []
        if path is not None and path.exists():
            kept = json.loads(path.read_text("utf-8"))
            for name, own in self._identity.items():
                if kept["settings"].get(name, own) != own:
                    raise SystemExit(f"{path} holds results of other settings of {name!r}")
            self._identity = kept["settings"] | self._identity
            self.runs = [Run(**one) for one in kept["runs"]]

    def has(self, case: str, way: str, seed: int) -> bool:
        """Whether a training is done."""
        return any((one.case, one.way, one.seed) == (case, way, seed) for one in self.runs)

    def add(self, one: Run) -> None:
        """Keep a result. The file is replaced as a whole, so a killed run leaves a good one."""
        self.runs.append(one)
        if self._path is not None:
            kept = {"settings": self._identity, "runs": [asdict(own) for own in self.runs]}
            partial = self._path.with_name(self._path.name + ".partial")
            partial.write_text(json.dumps(kept, indent=1), "utf-8")
            partial.replace(self._path)

    def forget(self, case: str, way: str) -> None:
        """Leave out all results of an order, so that they are made anew."""
        self.runs = [one for one in self.runs if (one.case, one.way) != (case, way)]


Task = tuple[Source, Settings, Way, int]


def run_all(kept: Kept, tasks: list[Task], num_jobs: int, on_run: Callable[[Run], None]) -> None:
    """Run the trainings that are not done yet, in the order of ``tasks``."""
    tasks = [own for own in tasks if not kept.has(own[0].name, own[2].name, own[3])]
    for one in _results(tasks, num_jobs):
        kept.add(one)
        on_run(one)


def _results(tasks: list[Task], num_jobs: int) -> Iterator[Run]:
    if num_jobs == 1:
        yield from (run(*task) for task in tasks)
        return
    # Not a fork: PyTorch's and xloader's threads do not survive one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, mp_context=context) as pool:
        yield from pool.map(run, *zip(*tasks, strict=True))


def with_schedule(schedule: Schedule) -> dict[str, Settings]:
    """The settings of all cases, with another schedule of the learning rate."""
    return {name: replace(own, schedule=schedule) for name, own in SETTINGS.items()}
