"""What GitHub and conda-forge run is what `make` and `nox` know, for the same version."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.versions import bounds, project

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

OTHER_NAMES = {"dask": "dask-core"}
"""Packages that conda-forge calls otherwise: its `dask` brings all that dask can use."""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_this_repository_knows(path: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    noxfile = (ROOT / "noxfile.py").read_text("utf-8")
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", noxfile, re.M))
    jobs = read(path)["jobs"]
    sessions_of_matrix = {
        session
        for job in jobs.values()
        for session in job.get("strategy", {}).get("matrix", {}).get("session", [])
    }
    assert sessions_of_matrix <= sessions
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    for line in lines:
        if line.startswith("make "):
            assert set(line.split()[1:]) <= targets, line
        elif line.startswith("nox "):
            named = line.split()[2]
            assert named.startswith("$") or named in sessions, line
        else:
            assert line.startswith(("pip install nox", "grep ")), line


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_workflows_are_right_for_actionlint() -> None:
    subprocess.run(["actionlint", *map(str, WORKFLOWS)], check=True)


def test_forms_of_issues_are_complete() -> None:
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) == 3
    for form in forms:
        told = read(form)
        if form.stem != "config":
            assert {"name", "description", "body"} <= set(told)
            assert all(part["attributes"]["label"] for part in told["body"])


def test_the_version_is_the_same_everywhere() -> None:
    version = project()["project"]["version"]
    assert read(ROOT / "CITATION.cff")["version"] == version
    assert read(ROOT / "docs" / "conda" / "recipe.yaml")["context"]["version"] == version
    assert version in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_recipe_asks_for_what_the_package_asks_for() -> None:
    asked = dict(bounds(project()["project"]["dependencies"]))
    lines = read(ROOT / "docs" / "conda" / "recipe.yaml")["requirements"]["run"]
    told = dict(bounds([line.replace(" ", "") for line in lines]))
    assert told.pop("python") == project()["project"]["requires-python"].removeprefix(">=")
    assert told == {OTHER_NAMES.get(name, name): bound for name, bound in asked.items()}
