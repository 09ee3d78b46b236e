"""The tests with the oldest and the newest supported versions: `nox -s oldest newest`.

`make ends` runs both sessions. ``oldest`` takes the oldest Python found, with the oldest release of
every dependency that pyproject.toml allows. ``newest`` takes the newest Python found, with the
newest releases. `python -m noxfile` prints both interpreters. Interpreters of pyenv are found too,
whether they are on PATH or not. `nox -s freethreaded` runs the tests without Python's lock.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nox
from packaging.tags import platform_tags

from hatch_build import TARGETS
from tests.versions import lower_bounds

nox.needs_version = ">=2024.10"
nox.options.sessions = ["oldest", "newest", "built"]
nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = True

ROOT = Path(__file__).parent
OLDEST = (3, 11)
"""The oldest Python of ``requires-python``."""

EXTRAS = ".[xbatcher,cloud,netcdf,geotiff,viz,fast]"

DEPENDENT = (
    *("tests/test_dependencies.py", "tests/sources", "tests/test_oracle.py"),
    *("tests/test_every_store.py", "tests/test_samples.py", "tests/test_transforms.py"),
    *("tests/test_xbatcher.py", "tests/test_golden.py", "tests/test_real_files.py"),
    *("tests/test_selection.py", "tests/test_oracle_joins.py", "tests/test_forcings.py"),
    *("tests/test_recorded_methods.py", "tests/test_normalize_clocks.py"),
    *("tests/mosaic/test_mosaic_values.py", "tests/jobs/test_quantile_sketch.py"),
    *("tests/jobs/test_materialize.py", "tests/jobs/test_shard_encoder.py"),
    "tests/cluster/test_cluster_tasks.py",
)
"""Tests of code that calls a dependency. The other tests use NumPy alone."""


FREE_TESTS = (
    *("aiohttp", "cftime", "distributed", "hatchling", "hypothesis", "matplotlib", "obstore"),
    *("psutil", "pytest", "pytest-timeout", "pytest-xdist", "scipy", "tqdm"),
)
"""What the tests need, as far as it was found for free-threaded Python."""

FREE_PINS = {(3, 13): ("numpy<2.5", "zarr<3.4")}
"""The last releases for free-threaded Python 3.13: later ones of zarr need msgspec, on 3.14."""

_HAS_LIBRARY = "from xloader.compiled import library as c; assert c.load_library()[0]"
"""Fails if the installed package lacks the compiled library."""


def _candidates() -> Iterator[str]:
    """Yield every interpreter on PATH and in pyenv."""
    for minor in range(OLDEST[1], 30):
        for name in (f"python3.{minor}", f"python3.{minor}t"):
            yield from filter(None, [shutil.which(name)])
    yield from filter(None, [shutil.which("python3"), shutil.which("python")])
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from map(str, sorted(root.glob("versions/3.*/bin/python")))


def _interpreters() -> tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]]:
    """Return the interpreters that run, by version: the usual ones, and the free-threaded ones.

    A name on PATH may be a shim without an interpreter behind it.
    """
    found: tuple[dict[tuple[int, int], str], dict[tuple[int, int], str]] = ({}, {})
    told = (
        "import sys, sysconfig; v = sys.version_info; "
        "print(v[0], v[1], v.releaselevel, sysconfig.get_config_var('Py_GIL_DISABLED') or 0)"
    )
    for path in _candidates():
        run = subprocess.run([path, "-c", told], capture_output=True, text=True, check=False)
        if run.returncode == 0:
            major, minor, level, is_free = run.stdout.split()
            version = int(major), int(minor)
            if version >= OLDEST and level == "final":
                found[int(is_free)].setdefault(version, path)
    return found


FOUND, FREE = _interpreters()
if not FOUND:
    raise SystemExit("no Python of 3.11 or newer was found on PATH or in pyenv")
FIRST, LAST = FOUND[min(FOUND)], FOUND[max(FOUND)]


def _run_tests(session: nox.Session, end: str) -> None:
    session.run("python", "-m", "tests.versions")
    session.run(
        *("python", "-m", "pytest", "-n", "3", "--dist", "worksteal", "-q"),
        *(*DEPENDENT, *session.posargs),
        env={"XLOADER_END": end, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


@nox.session(python=FIRST)
def oldest(session: nox.Session) -> None:
    """Run the tests with the oldest Python found and the oldest dependencies allowed."""
    if min(FOUND) != OLDEST:
        session.warn("the oldest supported Python, 3.11, was not found: this end is not run on it")
    session.install("-qq", "--upgrade", "pip>=25.1")
    pins = [f"{name}=={release}" for name, release in lower_bounds().items() if name != "torch"]
    constraints = Path(session.create_tmp()) / "oldest.txt"
    constraints.write_text("\n".join(pins))
    session.install("-qq", "-c", str(constraints), "-e", EXTRAS, "--group", "tests")
    _run_tests(session, "oldest")


@nox.session(python=LAST)
def newest(session: nox.Session) -> None:
    """Run the tests that call dependencies with the newest releases."""
    if len(FOUND) == 1:
        session.warn("only one Python was found: both ends are run on it")
    session.install("-qq", "--upgrade", "pip>=25.1")
    session.install("-qq", "-e", EXTRAS, "--group", "tests")
    _run_tests(session, "newest")


@nox.session(python=FREE[max(FREE)] if FREE else False)
def freethreaded(session: nox.Session) -> None:
    """Run the tests without Python's lock, if there is an interpreter that can do without it."""
    if not FREE:
        session.skip("no free-threaded Python was found on PATH or in pyenv")
    session.install("-qq", "--upgrade", "pip>=25.3")
    pins = Path(session.create_tmp()) / "freethreaded.txt"
    pins.write_text("".join(f"{pin}\n" for pin in FREE_PINS.get(max(FREE), ())))
    # What is built from its sources is built for the NumPy that is installed.
    env = {"PIP_CONSTRAINT": str(pins), "PIP_BUILD_CONSTRAINT": str(pins)}
    session.install("-qq", "--prefer-binary", "-e", ".", *FREE_TESTS, env=env)
    session.run("python", "-m", "tests.versions")
    session.run(
        *("python", "-m", "pytest", "-n", "2", "--dist", "worksteal", "-q"),
        *session.posargs,
        env={"PYTHON_GIL": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


@nox.session(python=LAST)
def built(session: nox.Session) -> None:
    """Build the sdist and a wheel for each platform into ``dist/``, look at them, and try some."""
    session.install("-qq", "--upgrade", "pip>=25.1")
    session.install("-qq", "--group", "wheels")
    dist, again = ROOT / "dist", Path(session.create_tmp()).resolve() / "again"
    for folder in (dist, again):
        shutil.rmtree(folder, ignore_errors=True)
        _build(session, folder)
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())), silent=True)
    session.run("check-wheel-contents", str(dist))
    session.run("python", "-m", "tests.wheels", str(dist), str(again))
    _try(session, dist)


def _build(session: nox.Session, folder: Path) -> None:
    """Build the sdist, and from that a wheel for each platform."""
    build = ("python", "-m", "build", "--no-isolation", "--outdir", str(folder))
    session.run(*build, "--sdist", silent=True)
    (sdist,) = folder.glob("*.tar.gz")
    sources = Path(session.create_tmp()).resolve() / "sources"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.unpack_archive(sdist, sources, filter="data")
    (unpacked,) = sources.iterdir()
    for platform in (*TARGETS, "any"):
        command = (*build, "--wheel", str(unpacked))
        session.run(*command, env={"XLOADER_PLATFORM": platform}, silent=True)


def _try(session: nox.Session, dist: Path) -> None:
    """Install packages away from the sources and run the README's first example."""
    folder = Path(session.create_tmp()).resolve()
    example = folder / "example.py"
    example.write_text(_first_example())
    # As pip chooses: the first tag for which there is a wheel.
    ours = next(tag for tag in (*platform_tags(), "any") if [*dist.glob(f"*-{tag}.whl")])
    for package in (*dist.glob(f"*-{ours}.whl"), *dist.glob("*.tar.gz")):
        session.install("-qq", str(package))
        with session.chdir(folder):
            session.run("python", str(example), silent=True)
            session.run("xloader", "--help", silent=True)
            is_compiled = ours != "any" if package.suffix == ".whl" else shutil.which("cc")
            if is_compiled:
                session.run("python", "-c", _HAS_LIBRARY)
        session.run("python", "-m", "pip", "uninstall", "-qq", "--yes", "xloader")


def _first_example() -> str:
    """Return the README's first Python block, which needs no extra."""
    text = (ROOT / "README.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]


if __name__ == "__main__":
    for (major, minor), path in sorted(FOUND.items()):
        print(f"Python {major}.{minor}: {path}")
    for (major, minor), path in sorted(FREE.items()):
        print(f"Python {major}.{minor} without its lock: {path}")
