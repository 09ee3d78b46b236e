"""The cores of a rank: by affinity, launchers and control groups."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr

import xloader
from xloader.core import cores
from xloader.core.cores import CgroupLimits, CoreShare, find_cores

PARENT = os.getppid()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets the cores of this process, those of its parent, and the quota of its group."""

    def set_cores(num: int, num_parent: int | None = None, quota: float | None = None) -> None:
        known = {0: num, PARENT: num if num_parent is None else num_parent}
        monkeypatch.setattr(cores, "_affinity", lambda pid: set(range(known[pid])))
        monkeypatch.setattr(cores, "read_cgroup_limits", lambda *_: CgroupLimits(quota, None))

    return set_cores


SLURM = {"SLURM_STEP_TASKS_PER_NODE": "8(x2),4", "SLURM_CPUS_ON_NODE": "128"}


@pytest.mark.parametrize(
    ("environ", "share"),
    [
        pytest.param({}, CoreShare(128), id="no launcher"),
        pytest.param({"LOCAL_WORLD_SIZE": "8"}, CoreShare(128, 8), id="torchrun"),
        pytest.param({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, CoreShare(128, 4), id="mpirun"),
        pytest.param({**SLURM, "SLURM_NODEID": "1"}, CoreShare(128, 8), id="srun, second node"),
        pytest.param({**SLURM, "SLURM_NODEID": "2"}, CoreShare(128, 4), id="srun, third node"),
        pytest.param({**SLURM, "LOCAL_WORLD_SIZE": "2"}, CoreShare(128, 2), id="torchrun in srun"),
        pytest.param({"LOCAL_WORLD_SIZE": "many"}, CoreShare(128), id="no number"),
        pytest.param({"LOCAL_WORLD_SIZE": "0"}, CoreShare(128), id="none"),
    ],
)
def test_ranks_share_the_cores(machine, environ, share):
    machine(128)
    assert find_cores(environ) == share


def test_a_share_says_how_it_is_found():
    assert str(CoreShare(128, 8)) == "16 = 128 cores / 8 ranks"
    assert str(CoreShare(2)) == "2"
    assert CoreShare(2, 8).num_cores == 1


def test_ranks_with_cores_of_their_own_share_none(machine):
    machine(16, num_parent=128)
    assert find_cores({"LOCAL_WORLD_SIZE": "8"}) == CoreShare(16)
    # srun's own process is not tied to the cores of the job, so Slurm's number counts.
    assert find_cores({**SLURM, "SLURM_NODEID": "0"}) == CoreShare(16)
    machine(128, num_parent=256)
    assert find_cores({**SLURM, "SLURM_NODEID": "0"}) == CoreShare(128, 8)


@pytest.mark.parametrize(
    ("quota", "num_parent", "environ", "share"),
    [
        (1.5, 16, {}, CoreShare(2)),
        (0.3, 16, {}, CoreShare(1)),
        (64.0, 16, {}, CoreShare(16)),
        (8.0, 16, {"LOCAL_WORLD_SIZE": "4"}, CoreShare(8, 4)),
        (8.0, 64, {"LOCAL_WORLD_SIZE": "4"}, CoreShare(8, 4)),
        (64.0, 64, {"LOCAL_WORLD_SIZE": "4"}, CoreShare(16)),
    ],
)
def test_the_time_of_a_control_group_counts(machine, quota, num_parent, environ, share):
    machine(16, num_parent, quota)
    assert find_cores(environ) == share


TOLD = "from xloader.core.cores import find_cores; print(find_cores())"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity")
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_shell_between_launcher_and_rank_is_seen_through(is_tied):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one core")
    tie = f"os.sched_setaffinity(0, {{{allowed[0]}}}); " if is_tied else ""
    rank = f'import os; {tie}os.system(f"{{os.sys.executable}} -c \\"{TOLD}\\"; true")'
    environ = {**os.environ, "LOCAL_WORLD_SIZE": "2"}
    told = subprocess.check_output([sys.executable, "-c", rank], env=environ, text=True).strip()
    most = find_cores({}).num_cores
    assert told == ("1" if is_tied else str(CoreShare(most, 2)))


def test_explain_says_how_many_ranks_share_the_cores(machine, monkeypatch):
    machine(128)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    samples = xloader.open(xr.Dataset({"t": ("time", np.arange(64.0))})).window(time=1)
    with samples.loader(output="numpy") as loader:
        assert loader.explain().threads == "16 = 128 cores / 8 ranks"
        assert "threads        16 = 128 cores / 8 ranks\n" in str(loader.explain())
    with samples.loader(output="numpy", threads=3) as loader:
        assert loader.explain().threads == "3"
    with samples.loader(output="numpy", processes=2) as loader:
        assert loader.explain().threads == "16 = 128 cores / 8 ranks, and 2 processes"
