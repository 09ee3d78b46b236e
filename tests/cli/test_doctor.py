"""``xloader doctor`` tells what it was shown of a machine and its libraries."""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import click.testing
import pytest
from packaging.version import Version

from tests import versions
from tests.cli.json_shapes import SHAPES, check
from xloader import cli
from xloader.cli import diagnosis
from xloader.cli.diagnosis import NEWEST_TESTED, requirements_in
from xloader.cli.findings import Finding
from xloader.compiled.library import load_library
from xloader.core import cores as machine_limits
from xloader.core.cores import CgroupLimits, CoreShare, read_cgroup_limits, usable_cores

NO_LIMITS = CgroupLimits(None, None)


def run(*arguments):
    return click.testing.CliRunner().invoke(cli.main, ["doctor", *arguments])


@pytest.fixture(scope="module")
def told():
    """What doctor says here, as text and as JSON."""
    text, shown = run(), run("--json")
    assert text.exit_code == shown.exit_code
    return text.stdout, json.loads(shown.stdout)


def test_each_finding_is_a_line(told):
    text, shown = told
    check(shown, SHAPES["doctor"])
    lines = [line.split() for line in text.splitlines() if not line.strip().startswith("->")]
    assert len(lines) == len(shown["findings"]) > 15
    for line, finding in zip(lines, shown["findings"], strict=True):
        # Free memory changes from one run to the next.
        begin = [*finding["subject"].split(), finding["level"]]
        assert line[: len(begin)] == begin
        assert finding["level"] == "ok" or finding["remedy"]


def test_it_tells_the_truth_about_this_machine(told):
    found = {finding["subject"]: finding for finding in told[1]["findings"]}
    assert found["cores"]["value"] == usable_cores()
    assert found["compiled library"]["value"] == (
        "numpy" if load_library()[0] is None else "compiled"
    )
    assert found["codecs"]["level"] == "ok"
    assert {"memory", "forks", "PyTorch"} <= found.keys()
    for name in ("numpy", "xarray", "zarr"):
        if name in found:
            assert found[name]["value"] == version(name)


def test_a_problem_ends_with_code_1_and_names_what_is_broken(monkeypatch):
    bad = Finding("codecs", "problem", "blosc does not work", "install it again")
    monkeypatch.setattr(diagnosis, "find_codecs", lambda: bad)
    result = run()
    assert result.exit_code == 1
    assert result.stderr.endswith("Broken: codecs.\n")
    assert "problem  blosc does not work" in result.stdout
    assert json.loads(run("--json").stdout)["num_problems"] == 1


# --- limits of control groups


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_limits_of_version_2_and_of_the_groups_above(tmp_path):
    write(tmp_path / "proc/self", cgroup="0::/job/step\n")
    top = tmp_path / "sys/fs/cgroup"
    write(top / "job", cpu__max="150000 100000\n", memory__max="max\n")
    write(top / "job/step", cpu__max="max 100000\n", memory__max="2147483648\n")
    assert read_cgroup_limits(tmp_path) == CgroupLimits(1.5, 2 << 30)


def test_limits_of_version_1(tmp_path):
    write(tmp_path / "proc/self", cgroup="4:cpu,cpuacct:/pod\n3:memory:/pod\n")
    top = tmp_path / "sys/fs/cgroup"
    write(top / "cpu,cpuacct/pod", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    # The container sees its own group at the top, not at the path that the host has for it.
    write(top / "memory", memory__limit_in_bytes=str(1 << 30))
    assert read_cgroup_limits(tmp_path) == CgroupLimits(0.5, 1 << 30)


def test_no_limits(tmp_path):
    assert read_cgroup_limits(tmp_path) == NO_LIMITS
    write(tmp_path / "proc/self", cgroup="4:cpu:/\n3:memory:/\n")
    top = tmp_path / "sys/fs/cgroup"
    write(top / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    write(top / "memory", memory__limit_in_bytes=str(0x7FFFFFFFFFFFF000))
    assert read_cgroup_limits(tmp_path) == NO_LIMITS


def test_cores_that_a_control_group_and_ranks_leave(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(diagnosis.cores, "find_cores", lambda: CoreShare(16, 8))
    found = diagnosis.find_cores(CgroupLimits(15.5, None))
    assert (found.level, found.value) == ("ok", 2)
    assert found.found == (
        "16 of 64 usable; the control group allows the time of 15.5; each of 8 ranks takes 2"
    )


def test_the_memory_that_may_be_used_is_that_of_the_smaller_one(monkeypatch):
    monkeypatch.setattr(machine_limits, "memory_of", lambda: (16 << 30, None))
    monkeypatch.setattr(machine_limits, "read_cgroup_limits", lambda: CgroupLimits(None, 2 << 30))
    assert machine_limits.usable_nbytes() == 2 << 30
    monkeypatch.setattr(machine_limits, "read_cgroup_limits", lambda: NO_LIMITS)
    assert machine_limits.usable_nbytes() == 16 << 30
    monkeypatch.setattr(machine_limits, "memory_of", lambda: (None, None))
    assert machine_limits.usable_nbytes() is None


def test_memory_of_a_small_group_is_told(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\n")
    found = diagnosis.find_memory(NO_LIMITS, path)
    assert (found.level, found.value) == ("ok", 16 << 30)
    assert "8.0 GiB are free" in found.found
    found = diagnosis.find_memory(CgroupLimits(None, 2 << 30), path)
    assert (found.level, found.value) == ("ok", 2 << 30)
    assert "the control group allows 2.0 GiB" in found.found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has this folder")
def test_shared_memory(tmp_path, monkeypatch):
    assert diagnosis.find_shared_memory(tmp_path / "none").level == "problem"
    sizes = SimpleNamespace(total=64 << 20, free=64 << 20)
    monkeypatch.setattr(diagnosis.shutil, "disk_usage", lambda folder: sizes)
    found = diagnosis.find_shared_memory()
    assert found.level == "note"
    assert "64.0 MiB" in found.found


# --- libraries


@pytest.mark.parametrize(
    ("installed", "level"),
    [
        *(("2.0", "ok"), ("2.4.12", "ok"), ("2.5", "note"), ("3.0", "note")),
        *(("1.26.9", "problem"), (None, "problem")),
    ],
)
def test_releases_are_compared_with_those_tested(installed, level):
    found = diagnosis.find_release("lib", "2.0", "2.4", installed)
    assert found.level == level
    assert "2.0 to 2.4" in found.found
    assert (level == "ok") == (not found.remedy)


def test_a_library_of_an_extra_may_be_absent(monkeypatch):
    lines = ["packaging>=1", "absent-needed>=2", 'absent-extra>=3; extra == "viz"']
    monkeypatch.setattr(diagnosis, "requires", lambda package: lines)
    present, needed, extra = diagnosis.find_releases()
    assert (present.subject, present.level) == ("packaging", "ok")
    assert (needed.subject, needed.level) == ("absent-needed", "problem")
    assert (extra.subject, extra.level) == ("not installed", "ok")
    assert "absent-extra (viz)" in extra.found


def test_a_package_that_is_not_installed_has_no_known_requirements():
    assert diagnosis.find_releases("surely-not-installed") == []
    assert diagnosis.find_xloader(None).level == "note"


def test_the_table_of_releases_fits_the_requirements():
    bounds = {name.lower(): bound for name, bound in versions.lower_bounds().items()}
    assert NEWEST_TESTED.keys() <= bounds.keys()
    for name, newest in NEWEST_TESTED.items():
        assert Version(newest) >= Version(bounds[name]), name
    needed = versions.project()["project"]["dependencies"]
    assert requirements_in(needed).keys() <= NEWEST_TESTED.keys()


def test_requirements_of_extras_are_named_by_the_extra_that_brings_them_alone():
    lines = ["a>=1.2", 'b>=3; extra == "all"', 'b>=3; extra == "viz"', "c"]
    assert requirements_in(lines) == {"a": ("1.2", ""), "b": ("3", "viz")}


def test_a_codec_that_does_not_work_is_a_problem():
    found = diagnosis.find_codecs(("zstd", "no_such_codec"))
    assert found.level == "problem"
    assert found.found.startswith("no_such_codec (")


def test_forks():
    find = diagnosis.find_fork_safety
    assert find(["forkserver", "fork"], ["obstore"]).level == "ok"
    assert find(["fork", "spawn"], []).level == "ok"
    found = find(["fork", "spawn"], ["obstore"])
    assert found.level == "note"
    assert "obstore" in found.found


def test_torch_that_is_absent_or_broken(tmp_path, monkeypatch):
    (found,) = diagnosis.find_torch("no_such_module")
    assert found.level == "note"
    (tmp_path / "broken_torch.py").write_text("raise OSError('libcudart.so is absent')")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = diagnosis.find_torch("broken_torch")
    assert found.level == "problem"
    assert "libcudart.so is absent" in found.found


def test_gpus():
    gpu = SimpleNamespace(name="H100", total_memory=80 << 30)
    cuda = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, get_device_properties=lambda _: gpu
    )
    kind = SimpleNamespace(cuda="12.8")
    torch = SimpleNamespace(version=kind, cuda=cuda, backends=SimpleNamespace())
    found = diagnosis.find_devices(torch)
    assert found.found == "CUDA 12.8: H100 (80.0 GiB), H100 (80.0 GiB)"
    cuda.is_available = lambda: False
    assert diagnosis.find_devices(torch).level == "note"
    kind.cuda = None
    assert diagnosis.find_devices(torch).level == "ok"
