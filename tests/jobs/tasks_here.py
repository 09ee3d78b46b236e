"""Tasks as on a cluster, in this process: in any order, and ended after any unit."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest

from tests.moments import Killed
from xloader.cluster.cluster_tasks import MOST_UNITS, ClusterTasks
from xloader.jobs import swept_job
from xloader.jobs.materialize import training_store
from xloader.jobs.valid import sample_scores, valid_samples


@dataclass(frozen=True, eq=False)
class TasksHere(ClusterTasks):
    """Tasks that run one after the other. `most`: units until the process is killed."""

    nbytes: int = 1
    seed: int = 0
    threads: int = 1
    most: int | None = None

    def _threads(self) -> list[int]:
        return [self.threads, 1]

    def unit_nbytes(self, total_nbytes: int, most_units: int = MOST_UNITS) -> int:
        return self.nbytes

    def run(
        self, what: str, work: Callable[[Any, Any], Any], shared: Any, units: Iterable[Any]
    ) -> Iterator[tuple[Any, Any]]:
        listed = list(units)
        random.Random(self.seed).shuffle(listed)
        for number, unit in enumerate(listed):
            if number == self.most:
                raise Killed
            copied = cloudpickle.loads(cloudpickle.dumps(unit))
            yield unit, cloudpickle.loads(cloudpickle.dumps(work(shared, copied)))

    def ask_workers(self, what: str, function: Callable[..., Any], *args: Any) -> list[Any]:
        return [function(*args)]


def run_here(patch: pytest.MonkeyPatch, tasks: TasksHere) -> None:
    """Let all jobs run as these tasks."""
    for module in (valid_samples, sample_scores, swept_job, training_store):
        patch.setattr(module, "find_cluster", lambda *args, **options: tasks)
