"""The benchmark of a cluster counts tasks, and prints its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("distributed", reason="distributed is not installed")

from benchmarks import cluster


def test_each_shard_is_a_task_of_the_benchmark(client: Any, tmp_path: Path) -> None:
    figures = cluster.measure_scheduler(tmp_path, 12, client)
    assert (figures.num_shards, figures.num_tasks) == (12, 12)
    assert figures.begin_nbytes > 0
    assert "| 12 | 12 |" in cluster.show_memory([figures])
