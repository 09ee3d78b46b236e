"""The dependencies in pyproject.toml are those that the tests ran with."""

from __future__ import annotations

import os
import re
import sys

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests import versions
from xloader.cli.diagnosis import NEWEST_TESTED
from xloader.core.messages import extra_remedy

TABLE = versions.project()
END = os.environ.get("XLOADER_END", "")


@pytest.mark.skipif(END != "oldest", reason="not the end with the oldest dependencies")
@pytest.mark.parametrize(("name", "bound"), sorted(versions.lower_bounds().items()))
def test_the_oldest_end_has_the_lower_bounds(name: str, bound: str):
    installed = versions.installed(name)
    if installed is None and name in ("torch", "tqdm"):
        pytest.skip("this interpreter has no CPU build of PyTorch")
    if name == "jax":
        pytest.skip("only one release of JAX is tested")
    assert installed is not None
    # "2024.10" allows 2024.10.0, and "2.13.0+cpu" is a build of 2.13.0.
    assert Version(Version(installed).public) == Version(bound)


@pytest.mark.parametrize(("name", "bound"), sorted(versions.lower_bounds().items()))
def test_what_is_installed_is_allowed(name: str, bound: str):
    installed = versions.installed(name)
    assert installed is None or Version(installed) >= Version(bound)


def test_every_dependency_has_a_lower_bound_and_one_only():
    project = TABLE["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    asked = [line for line in (*project["dependencies"], *extras) if "xloader[" not in line]
    assert dict(versions.bounds(asked)).keys() == {Requirement(line).name for line in asked}
    groups = [
        line for lines in TABLE["dependency-groups"].values() for line in lines if type(line) is str
    ]
    given = versions.lower_bounds()
    for name, bound in versions.bounds(groups):
        assert given.get(name, bound) == bound, f"{name} has one bound for users, another for tests"


def test_the_pythons_of_the_metadata_are_tested():
    project = TABLE["project"]
    told = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    assert f">={told[0]}" == project["requires-python"]
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in told


def test_the_page_on_limits_tells_the_releases_that_were_tested() -> None:
    page = (versions.PYPROJECT.parent / "docs" / "limits.md").read_text("utf-8")
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+)\b.* \|$", page, re.MULTILINE)
    told = {name.lower().replace("pytorch", "torch"): ends for name, *ends in rows}
    assert len(told) == len(rows) >= 5
    bounds = versions.lower_bounds()
    for name, (oldest, newest) in told.items():
        assert (oldest, NEWEST_TESTED[name].removesuffix(".0")) == (bounds[name], newest)


def test_the_remedy_for_a_missing_library_names_the_extra() -> None:
    remedy = 'install the extra "torch": run pip install ".[torch]" in a clone of xloader'
    assert extra_remedy("torch") == remedy
