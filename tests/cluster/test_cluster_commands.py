"""The option ``--scheduler`` of commands: a cluster does the work, and its faults are told soon."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import click.testing
import pytest

from tests.jobs.test_materialize_restarts import objects_in, source_at
from xloader import cli
from xloader.cli import cluster_client

CHUNKS = ("--window", "time=3", "--chunks", "time=8")


def run(*arguments: object) -> click.testing.Result:
    return click.testing.CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def succeed(*arguments: object) -> Any:
    found = run(*arguments, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    source_at(tmp_path / "source.zarr")
    return tmp_path / "source.zarr"


def test_materialize(shared_cluster: Any, store: Path, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": shared_cluster.scheduler_address}))
    for number, scheduler in enumerate([shared_cluster.scheduler_address, file]):
        target = tmp_path / f"{number}.zarr"
        told = succeed("materialize", store, target, *CHUNKS, "--scheduler", scheduler)
        assert told["summary"]["num_cluster_threads"] == 2
    alone = succeed("materialize", store, tmp_path / "alone.zarr", *CHUNKS)
    assert alone["summary"]["num_cluster_threads"] == 0
    expected = objects_in(tmp_path / "alone.zarr")
    assert objects_in(tmp_path / "0.zarr") == objects_in(tmp_path / "1.zarr") == expected
    plan = run(
        *("materialize", store, tmp_path / "t.zarr", *CHUNKS, "--dry-run"),
        *("--scheduler", shared_cluster.scheduler_address),
    )
    assert "on a cluster of 2 threads" in plan.stdout


def test_what_listens_at_the_address_and_never_speaks(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        found = run("stats", store, "--scheduler", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
    assert found.exit_code == 2
    assert "the scheduler of the dask cluster does not answer" in found.output


@pytest.mark.parametrize("command", ["stats", "materialize", "advise"])
def test_a_scheduler_that_does_not_answer(
    command: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_client, "_SECONDS", 0.2)
    arguments: list[object] = [command, store, "--scheduler"]
    arguments[2:2] = {"materialize": ["t.zarr", *CHUNKS], "advise": ["--measure", *CHUNKS[:2]]}.get(
        command, []
    )
    found = run(*arguments, "tcp://127.0.0.1:1")
    assert found.exit_code == 2
    assert "the scheduler of the dask cluster does not answer" in found.output
    assert "check the address" in found.output


@pytest.mark.parametrize("text", ["localhost:8786", "no-such.json", "source.zarr/zarr.json"])
def test_what_is_no_scheduler(
    store: Path, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run("materialize", store, "t.zarr", *CHUNKS, "--scheduler", text)
    assert found.exit_code == 2
    assert "--scheduler names no scheduler" in found.output
    assert "tcp://host:8786" in found.output


def test_without_distributed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = run("stats", store, "--scheduler", "tcp://127.0.0.1:1")
    assert found.exit_code == 2
    assert "pip install '.[dask]'" in found.output


def test_a_cluster_only_measures(store: Path) -> None:
    found = run("advise", store, *CHUNKS[:2], "--scheduler", "tcp://127.0.0.1:1")
    assert found.exit_code == 2
    assert "add --measure" in found.output


def test_a_worker_measures(shared_cluster: Any, store: Path) -> None:
    line = ("advise", store, *CHUNKS[:2], "--batch-size", 4)
    scheduler = ("--scheduler", shared_cluster.scheduler_address)
    found = succeed(*line, "--measure", *scheduler)
    assert (found["speed"], succeed(*line)["speed"]) == ("measured", "assumed")
    assert found["num_measured_reads"] == 4
    assert succeed(*line, "--measure")["num_measured_reads"] == 4


@pytest.mark.parametrize("window", [(), ("--window", "time=3")])
def test_stats(shared_cluster: Any, store: Path, window: tuple[str, ...]) -> None:
    found = succeed("stats", store, *window, "--scheduler", shared_cluster.scheduler_address)
    assert found == succeed("stats", store, *window)
