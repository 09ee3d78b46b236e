"""The reference has every public name, and no other; commands and errors are explained."""

from __future__ import annotations

import doctest
import errno
import importlib.util
import inspect
import os
import pickle
import re
import sys
import threading
import warnings

import numpy as np
import pytest
import xarray as xr

import xloader
from tests.reference_pages import (
    REFERENCE,
    entries,
    public_members,
    public_names,
    resolve,
    table_rows,
)
from xloader import errors
from xloader.cli import main
from xloader.cluster import rank_queue
from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.compiled.library import load_library
from xloader.engine import run
from xloader.samples import describe
from xloader.sources.stores import locations
from xloader.testing import FaultyStore, write_store

torch = pytest.importorskip("torch")
pinned_slots = pytest.importorskip("xloader.device.pinned_slots")

PAGES = sorted(REFERENCE.glob("*.md"))


@pytest.fixture(scope="module")
def texts():
    return {page.name: page.read_text("utf-8") for page in PAGES}


@pytest.fixture(scope="module")
def described(texts):
    return set().union(*(entries(text) for text in texts.values()))


@pytest.fixture(scope="module")
def rows(texts):
    return [row for name, text in texts.items() if name != "api.md" for row in table_rows(text)]


def test_every_public_name_is_in_a_table_of_its_page(rows):
    assert {*public_names()} - {*rows} == set()


def test_the_entry_page_has_every_public_name(texts):
    # The loaders of xbatcher are the same three names once more.
    expected = {name for name in public_names() if ".loaders." not in name}
    assert expected - {*table_rows(texts["api.md"])} == set()


@pytest.mark.parametrize(
    "name", [name for name, value in sorted(public_names().items()) if isinstance(value, type)]
)
def test_every_public_member_is_in_a_table(name, rows):
    members = public_members(public_names()[name])
    assert {f"{name}.{member}" for member in members} - {*rows} == set()


def test_every_row_of_a_table_leads_to_an_entry(rows, texts, described):
    assert {*rows, *table_rows(texts["api.md"])} - described == set()


def test_every_row_of_a_table_has_a_summary(rows):
    for row in rows:
        owner, _, name = row.rpartition(".")
        # The texts of special methods would else be those of Python's own.
        kinds = resolve(owner).__mro__ if name.startswith("__") else ()
        own = next((kind.__dict__[name] for kind in kinds if name in vars(kind)), resolve(row))
        assert inspect.getdoc(own), row


def test_every_entry_exists(described):
    for name in described:
        if not name.startswith("xarray."):
            resolve(name)
    with pytest.raises(AttributeError):
        resolve("xloader.Samples.nothing")


def test_the_accessor_is_described(described):
    kinds = ("Dataset", "DataArray", "DataTree")
    assert {f"xarray.{kind}.xloader" for kind in kinds} <= described
    assert all(resolve(f"xarray.{kind}.xloader") for kind in kinds)


# Errors and warnings

ERRORS_PAGE = (REFERENCE / "errors.md").read_text("utf-8")
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and kind.__module__ == "xloader.errors"
}
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", ERRORS_PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_is_explained(name):
    text = SECTIONS[name]
    assert f"```{{py:exception}} xloader.errors.{name}\n" in text
    assert "\n**What to do:** " in text
    shown = re.findall(r"^```(pycon|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    # Sessions run with the examples of the page, and texts below.
    assert shown
    if shown[0][0] == "pycon":
        assert f"xloader.errors.{name}" in shown[0][1]
    else:
        assert name in dict(PROVOKED)


def test_no_other_error_is_explained():
    assert {*SECTIONS} == {*CLASSES}


def test_the_tree_is_that_of_the_classes():
    pattern = r"^( *)- \[(\w+)\]\(#(\w+)\)(?: \(`(\w+)`\))?"
    above, found = [], {}
    for indent, name, anchor, builtin in re.findall(pattern, ERRORS_PAGE, re.MULTILINE):
        assert anchor == name.lower()
        del above[len(indent) // 2 :]
        found[name] = [*above[-1:], *([builtin] if builtin else [])]
        above.append(name)
    hidden = (object, Exception, errors.XloaderError, errors.XloaderWarning)
    assert found == {
        name: [
            base.__name__
            for base in kind.__bases__
            if base not in hidden or (base in hidden[2:] and name != base.__name__)
        ]
        for name, kind in CLASSES.items()
    }


def test_the_tree_in_the_code_has_every_class():
    named = re.findall(r"[-`|]-- (\w+)", errors.__doc__)
    assert sorted(named) == sorted({*CLASSES} - {"XloaderError", "XloaderWarning"})


def small_samples(**options):
    ds = xr.Dataset({"t2m": (("time", "lat", "lon"), np.zeros((120, 8, 16), "f4"))})
    store = FaultyStore(write_store(ds, {"t2m": (20, 8, 16)}), options.pop("faults", {}))
    return xloader.open(store, **options).window(time=3, stride=1)


def fill_the_disk(patch, folder):
    def fail(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "fsync", fail)
    small_samples().stats(path=folder / "stats.nc")


def lack_jax(patch, folder):
    patch.setitem(sys.modules, "jax", None)
    small_samples().loader(batch_size=8, output="jax")


def fork(patch, folder):
    with small_samples().loader(batch_size=8, output="numpy") as loader:
        iterator = iter(loader)
        number = os.getpid()
        with patch.context() as child:
            child.setattr(os, "getpid", lambda: number + 1)
            next(iterator)


def read_a_program_from_a_pipe(patch, folder):
    patch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    next(iter(small_samples().loader(batch_size=8, processes=2)))


def start_no_worker(patch, folder):
    raise rank_queue.no_worker(30)


def change_the_rank(patch, folder):
    loader = small_samples().loader(batch_size=8)
    len(loader)
    patch.setenv("RANK", "1")
    patch.setenv("WORLD_SIZE", "2")
    len(loader)


def index_one_by_one(patch, folder):
    patch.setattr(describe, "_has_warned", False)
    list(torch.utils.data.DataLoader(small_samples(), batch_size=8))


def wait_for_a_chunk(patch, folder):
    told = threading.Event()

    def answer(data):
        assert told.wait(60)
        return data

    def tell(message, category):
        told.set()
        raise category(message)

    patch.setattr("xloader.engine.threads.LONG_SECONDS", 0.01)
    patch.setattr("xloader.engine.run.warn_caller", tell)
    samples = small_samples(faults={"t2m/c/0/0/0": answer})
    with samples.loader(batch_size=8, shuffle=False) as loader:
        next(iter(loader))


def pin_nothing(patch, folder):
    class Refusing:
        def pin(self, block):
            raise RuntimeError("out of memory")

    pinned_slots.PinnedBlock(Refusing(), np.zeros(4096, "u1"))


def wait_for_a_worker(patch, folder):
    class NoWorkers(ClusterTasks):
        def _threads(self):
            return []

    NoWorkers(None).wait_for_worker()


def open_half_a_store(patch, folder):
    small_samples().materialize(folder / "half.zarr", part=(0, 2))
    # zarr warns of the records beside the arrays.
    warnings.filterwarnings("ignore", "Object at")
    xloader.open(folder / "half.zarr")


def install_without_compiler(patch, folder):
    patch.setattr(run, "load_library", lambda: load_library.__wrapped__(folder))
    patch.setattr(run, "can_run_natively", lambda parts: False)
    run._warn_of_missing_library.cache_clear()
    # The other tests pass without the library too.
    warnings.simplefilter("error", errors.EnvironmentWarning)
    with small_samples().loader(batch_size=2, output="numpy") as loader:
        iter(loader)


def send_much_memory(patch, folder):
    patch.setattr(locations, "MOST_QUIET_NBYTES", 2000)
    pickle.dumps(xloader.open(xr.Dataset({"t2m": ("time", np.zeros(5000))})))


def advise_large_shards(patch, folder):
    values = np.random.default_rng(0).normal(size=(960, 16, 50)).astype("f4")
    ds = xr.Dataset({"t": (("time", "y", "x"), values)})
    samples = xloader.open(write_store(ds, {"t": (960, 2, 10)})).window(time=2)
    advice = samples.advise(batch_size=8, memory="2MiB", threads=1)
    samples.materialize(folder / "t.zarr", advice=advice, threads=1, memory="4MiB")


PROVOKED = (
    ("StoreFullError", fill_the_disk),
    ("MissingDependencyError", lack_jax),
    ("ForkError", fork),
    ("WorkersError", read_a_program_from_a_pipe),
    ("ClusterError", start_no_worker),
    ("RanksError", change_the_rank),
    ("WorkersWarning", index_one_by_one),
    ("TargetWarning", open_half_a_store),
    ("WorkersWarning", send_much_memory),
    ("TargetWarning", advise_large_shards),
    ("ChunkWarning", wait_for_a_chunk),
    ("EnvironmentWarning", pin_nothing),
    ("ClusterWarning", wait_for_a_worker),
    ("EnvironmentWarning", install_without_compiler),
)
"""The faults that a reader's session cannot make: what they are called, and how they come about."""


@pytest.mark.parametrize(("name", "provoke"), PROVOKED)
def test_a_message_shown_as_text_is_real(name, provoke, monkeypatch, tmp_path):
    with pytest.raises(CLASSES[name]) as caught:
        provoke(monkeypatch, tmp_path)
    shown = re.findall(r"^```text\n(.*?)^```", SECTIONS[name], re.MULTILINE | re.DOTALL)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    given = f"{caught.value}\n"
    check = doctest.OutputChecker().check_output
    assert any(check(text, given, options) for text in shown), given


# The command line


def test_every_option_is_on_the_page_of_options():
    """The page is made of click's help texts, with all groups of options."""
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location(
        "command_options", REFERENCE.parent / "_extensions" / "command_options.py"
    )
    extension = importlib.util.module_from_spec(spec)
    sys.modules["command_options"] = extension
    spec.loader.exec_module(extension)
    shown = {
        help_.name: " ".join(name for rows in help_.tables.values() for name, _ in rows)
        for help_ in extension.command_helps(main, "xloader")
    }
    assert {*shown} == {"xloader", *(f"xloader {name}" for name in main.commands)}
    for name, command in main.commands.items():
        options = [
            option
            for parameter in command.params
            if parameter.param_type_name == "option" and not parameter.hidden
            for option in (*parameter.opts, *parameter.secondary_opts)
        ]
        assert options
        assert {*options} <= {*re.findall(r"-[\w-]+", shown[f"xloader {name}"])}
    assert "command-options" in (REFERENCE / "command_options.md").read_text("utf-8")


def test_the_page_of_the_command_line_names_every_command_and_no_other_option():
    text = (REFERENCE / "command_line.md").read_text("utf-8")
    for name in main.commands:
        assert re.search(rf"^\| `xloader {name}\b", text, re.MULTILINE), name
    parameters = [*main.params, *(own for cmd in main.commands.values() for own in cmd.params)]
    known = {option for own in parameters for option in (*own.opts, *own.secondary_opts)}
    # Those of the batch system and of containers are in blocks without a language.
    examples = re.findall(r"^\s*(?:srun )?xloader .*$", text, re.MULTILINE)
    named = re.findall(r"`(--[\w-]+)", text) + re.findall(r" (--[\w-]+)", "\n".join(examples))
    assert {*named} - known - {"--help", "--shm-size"} == set()
