"""The benchmark of GPUs runs without one, says what it did not measure, and counts correctly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from benchmarks import gpu
from benchmarks.on_device import bandwidth, checks, clock, decompress, end_to_end, feeds, unet
from benchmarks.on_device.clock import NOT_MEASURED, DeviceClock
from benchmarks.on_device.scale import FULL, QUICK
from benchmarks.stores import ensure_stores

ROOT = Path(__file__).resolve().parents[1]
CPU = DeviceClock(torch.device("cpu"))


def rows_of(text: str) -> dict[str, list[list[str]]]:
    """Return the rows of each table by the title above it, without the line below the heads."""
    tables = {}
    for part in text.split("### ")[1:]:
        title, *lines = part.splitlines()
        rows = [line for line in lines if line.startswith("|")]
        tables[title] = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
        del tables[title][1:2]
    return tables


# --- the whole program


def test_a_quick_run_without_a_gpu_fills_its_tables(tmp_path):
    line = [sys.executable, "-m", "benchmarks.gpu", "--quick", "--device", "cpu"]
    run = subprocess.run(
        [*line, "--folder", str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr
    tables = rows_of(run.stdout)
    assert list(tables) == [title for title, _ in gpu.PARTS.values()]
    copies, ladder, whole, trained, packed, memory, decoded, checked = tables.values()
    assert [row[0] for row in whole[1:]] == [
        end_to_end.IDEAL,
        end_to_end.BY_ITSELF,
        end_to_end.LITTLE,
    ]
    assert all(float(row[1].split(",")[0]) > 0 for row in whole[1:])
    assert copies[1][0] == "1 MiB"
    assert float(copies[1][1]) > 0
    assert copies[1][2:] == [NOT_MEASURED] * 3
    assert [row[0] for row in ladder[1:]] == [rung.name for rung in bandwidth.RUNGS]
    assert [row[1] for row in ladder[1:]] == ["2", "2", "2", "2", "4", "4", "8"]
    for table in (trained, packed, memory):
        assert [row[0] for row in table[1:]] == [kind.name for kind in feeds.FEEDS]
        for kind, row in zip(feeds.FEEDS, table[1:], strict=True):
            assert (set(row[1:]) == {NOT_MEASURED}) == kind.needs_cuda
    assert trained[1][2] == "1.00"
    assert trained[1][6] == NOT_MEASURED
    assert memory[1][1] == f"2 to {QUICK.num_epochs}"
    assert [row[0] for row in decoded[1:]] == [decompress.OURS, *decompress.NEEDED]
    assert all(row[1].startswith(NOT_MEASURED) for row in decoded[2:])
    assert [row[0] for row in checked[1:]] == list(checks.CHECKS)
    # One sample fewer than steps, in batches without a remainder.
    assert {row[1] for row in checked[1:]} == {"16"}
    assert all(row[2].startswith("held") for row in checked[1:])
    assert "without a GPU by CUDA" in run.stdout


# --- arithmetic


@pytest.mark.parametrize(
    ("copy", "step", "both", "expected"),
    [
        (2.0, 10.0, 10.0, 1.0),
        (2.0, 10.0, 12.0, 0.0),
        (2.0, 10.0, 11.0, 0.5),
        (10.0, 4.0, 11.0, 0.75),
    ],
)
def test_overlap_is_the_hidden_share_of_the_shorter(copy, step, both, expected):
    assert clock.overlap(copy, step, both) == pytest.approx(expected)


# --- the parts


def test_the_full_model_has_about_30_million_parameters():
    assert 7e6 < unet.num_parameters(4, FULL.width) < 9e6


@pytest.mark.parametrize("rung", bandwidth.RUNGS, ids=lambda rung: rung.name)
def test_a_rung_gives_its_values_back(rung):
    values = bandwidth._values(1000)
    found = rung.widen(rung.pack(values))
    assert found.dtype == torch.float32
    assert (found - values).abs().max() <= rung.tolerance * values.abs().max()


def test_a_wrong_value_breaks_a_check(tmp_path, monkeypatch):
    path = ensure_stores(tmp_path, [QUICK.store])[QUICK.store]
    kept = checks.CHECKS["kept to the end of the epoch"]

    def spoil(*args: object) -> checks.Sums:
        found = kept(*args)
        found[7] = (found[7][0] + 1, found[7][1])
        return found

    monkeypatch.setattr(checks, "CHECKS", {"kept": kept, "spoilt": spoil})
    table = checks.show_checks(CPU, QUICK, path)
    assert [line.split("|")[3].strip() for line in table.splitlines()[2:]] == [
        "held",
        checks.BROKEN,
    ]
