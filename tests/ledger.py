"""The ledger: what xloader promises its users, as text in the folder ``ledger``.

`test_ledger.py` compares it with what the code does. To change it on purpose, run::

    python -m tests.ledger

and read the difference. States and caches that earlier versions saved stay as they are, because
users have them too; they are made where their files have none.

Two more parts have tests of their own: ``golden_order.json`` that of `test_golden.py`, and the JSON
of commands, in ``cli/json_shapes.py``.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import xarray as xr
from zarr.storage import LocalStore

import xloader
from benchmarks.layouts import LAYOUTS, Layout, Sizes
from benchmarks.stores import ensure_stores
from tests.reference_pages import MODULES, public_members, public_names
from xloader import cli, errors
from xloader.forcings import latitude
from xloader.testing import CountingStore, is_chunk_key, write_store

FOLDER = Path(__file__).with_name("ledger")


# Names


def names() -> str:
    """Every public name with its signature. A star stands before parameters passed by name."""
    public = {
        f"{module}.{name}": getattr(import_module(module), name)
        for module in MODULES
        for name in import_module(module).__all__
    }
    public |= {f"xloader.errors.{name}": kind for name, kind in error_classes().items()}
    public["xarray.Dataset.xloader"] = xr.Dataset.xloader
    return "\n".join(line for name in sorted(public) for line in _entry(name, public[name])) + "\n"


def error_classes() -> dict[str, type]:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    return {name: kind for name, kind in kinds.items() if issubclass(kind, (Exception, Warning))}


def _entry(name: str, value: Any) -> Iterator[str]:
    if not callable(value):
        yield f"{name}: {type(value).__name__}"
        return
    if not isinstance(value, type):
        yield from _signature(name, value)
        return
    bases = ", ".join(_bases(value))
    head = f"class {name}({bases})" if bases else f"class {name}"
    # Python gives no signature of warnings.
    yield head
    if not issubclass(value, Warning):
        yield from _parameters(value)
    for special in sorted(_special_methods(value)):
        yield f"  {special}"
    for member in sorted(public_members(value)):
        held = inspect.getattr_static(value, member)
        kind = f" [{type(held).__name__}]" if isinstance(held, classmethod | staticmethod) else ""
        if callable(getattr(value, member)):
            yield from (f"  {line}" for line in _signature(member + kind, getattr(value, member)))
        else:
            getter = getattr(held, "fget", None) or getattr(held, "func", None)
            returned = getattr(getter, "__annotations__", {}).get("return", "Any")
            yield f"  {member} -> {returned}"


def _bases(kind: type) -> list[str]:
    """The nearest bases that users know: public ones, and those of other libraries."""
    public = {*public_names().values(), *error_classes().values()}
    kept: list[type] = []
    for base in kind.__mro__[1:-1]:
        is_known = base in public or not base.__module__.startswith("xloader")
        if is_known and base.__name__ != "Generic" and not any(issubclass(k, base) for k in kept):
            kept.append(base)
    return [base.__name__ for base in kept]


_OF_PYTHON = re.compile(
    r"__(init|new|post_init|repr|replace|annotat\w+|\w*state|reduce\w*|getnewargs\w*|slots"
    r"|init_subclass|class_getitem|set_name|(set|del)attr|del)__"
)
"""Methods that dataclasses, copying or the version of Python bring along."""


def _special_methods(kind: type) -> set[str]:
    return {
        name
        for base in kind.__mro__
        if base.__module__.startswith("xloader")
        for name, held in vars(base).items()
        if name.startswith("__") and inspect.isfunction(held) and not _OF_PYTHON.fullmatch(name)
    }


def _signature(name: str, value: Any) -> Iterator[str]:
    yield f"{name} -> {_annotation(inspect.signature(value).return_annotation)}"
    yield from _parameters(value)


def _parameters(value: Any) -> Iterator[str]:
    stars = {"KEYWORD_ONLY": "* ", "VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}
    for parameter in inspect.signature(value).parameters.values():
        # Parameters with an underscore are not for users.
        if parameter.name.startswith("_") or parameter.name == "self":
            continue
        line = f"    {stars.get(parameter.kind.name, '')}{parameter.name}"
        line += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            # The text of a function would have its address.
            line += f" = {getattr(parameter.default, '__name__', repr(parameter.default))}"
        yield line


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return "?"
    # Our own modules may move.
    return re.sub(r"\bxloader\.[\w.]+\.(?=\w)", "", str(annotation))


# Commands


def commands() -> str:
    """The help of every command."""
    runner = click.testing.CliRunner()
    texts = []
    for command in cli.main.commands.values():
        # click keeps the option as it was in the first call, which another test may have made.
        vars(command)["_help_option"] = None
    for command in ([], *([name] for name in sorted(cli.main.commands))):
        line = [*command, "--help"]
        result = runner.invoke(cli.main, line, prog_name="xloader", terminal_width=100)
        texts.append(f"$ xloader {' '.join(line)}\n{result.stdout}")
    return "\n".join(texts)


# Loaders


def fields() -> xr.Dataset:
    """Two variables over time, lat and lon."""
    values = np.arange(96 * 8 * 16, dtype="f4").reshape(96, 8, 16)
    labels = {
        "time": np.datetime64("2001-01-01", "ns") + np.timedelta64(6, "h") * np.arange(96),
        "lat": np.linspace(70, -70, 8),
        "lon": np.arange(0, 360, 22.5),
    }
    dims = ("time", "lat", "lon")
    return xr.Dataset({"t2m": (dims, values), "z": (dims, values % 7)}, labels)


def stored() -> Any:
    return write_store(fields(), {"t2m": (12, 4, 8), "z": (12, 8, 16)})


def opened() -> xloader.Samples:
    return xloader.open(stored())


STATS = {"t2m": (6000.0, 3500.0), "z": (3.0, 2.0)}
OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "memory": "128KiB",
    "threads": 2,
    "seed": 5,
    "output": "numpy",
}


def in_steps(time: int = 2) -> xloader.Samples:
    return opened().window(time=time, stride=1)


def in_patches() -> xloader.Samples:
    return opened().window(time=1, lat=3, lon=3, stride=1)


def with_forcings() -> xloader.Samples:
    computed = opened().forcing("insolation", "cos_local_time", "latitude")
    return computed.window(time=1).inputs("t2m", "insolation", "latitude").targets("z")


def transformed() -> xloader.Samples:
    samples = in_steps().inputs("t2m").targets("z").normalize(STATS).fillna(0.0)
    return samples.clip(min=-2.0).coarsen(lat=2).mean().isin([1.0, 2.0])


def interleaved() -> xloader.Interleaved:
    return xloader.interleave({"all": (in_steps(), 2), "half": (in_steps().select(range(40)), 1)})


Make = Callable[[], Any]

EXPLAINED: dict[str, Make] = {
    "shuffled": lambda: in_steps().loader(**OPTIONS),
    "patches": lambda: in_patches().loader(**{**OPTIONS, "batch_size": 32}),
    "all in memory": lambda: in_steps().loader(**{**OPTIONS, "memory": "16MiB"}),
    "in order": lambda: in_patches().loader(**OPTIONS, shuffle=False),
    "chosen": lambda: in_steps().select(range(0, 90, 4)).loader(**OPTIONS),
    "weighted": lambda: in_steps().weighted(np.arange(95.0)).loader(**OPTIONS),
    "rank 1 of 2": lambda: in_steps().loader(**OPTIONS, world=xloader.World(1, 2), drop_last=True),
    "transforms": lambda: transformed().loader(**OPTIONS),
    "forcings": lambda: with_forcings().loader(**OPTIONS),
    "interleaved": lambda: interleaved().loader(**{**OPTIONS, "memory": "256KiB"}),
}


def explanations() -> str:
    """What each loader explains."""
    return "\n".join(f"# {name}\n\n{make().explain()}\n" for name, make in EXPLAINED.items())


# Reads


def reads() -> str:
    """Reads and memory for each layout of the benchmark, with short and small fields."""
    rows = [("layout", "samples", "reads", "counted", "peak bytes", "read bytes")]
    layouts = [_shrink(layout) for layout in LAYOUTS]
    with tempfile.TemporaryDirectory() as folder:
        paths = ensure_stores(Path(folder), [layout.store for layout in layouts])
        for layout in layouts:
            store = CountingStore(LocalStore(paths[layout.store], read_only=True))
            samples = xloader.open(store, **layout.open_options)
            samples = samples.window(layout.window, stride=layout.stride)
            options = {"batch_size": layout.batch_size, "memory": layout.memory_nbytes}
            with samples.loader(**options, threads=2, output="numpy") as loader:
                expected = loader.explain()
                store.reset()
                for _ in loader:
                    pass
            # Chunks that lie side by side in a shard may come with one request.
            counted = loader.report().num_reads if layout.store.shards else store.num_reads
            figures = (expected.num_samples, expected.num_reads, counted)
            nbytes = (expected.peak_nbytes, expected.read_nbytes)
            rows.append((layout.name, *map(str, (*figures, *nbytes))))
    return "\n".join("".join(f"{cell:<14}" for cell in row).rstrip() for row in [*rows, ()])


def _shrink(layout: Layout) -> Layout:
    """A layout as a quick benchmark has it, with a tenth of the sizes along lat and lon."""

    def small(sizes: Sizes) -> Sizes:
        return sizes[0], sizes[1] // 10, sizes[2] // 10

    spec = layout.store
    shards = spec.shards and small(spec.shards)
    spec = dataclasses.replace(spec, chunks=small(spec.chunks), shards=shards, lats=18, lons=36)
    window = {dim: -(-size // 10) if dim != "time" else size for dim, size in layout.window.items()}
    return dataclasses.replace(layout, store=spec, window=window).shrink()


# States


def unchanged(batch: xr.Dataset, fn: Any) -> xr.Dataset:
    """A function of a user, with one of ours among its arguments. A state has the names of both."""
    return batch


def torch_dataset() -> Any:
    from xloader.torch import IterableDataset

    options = {name: OPTIONS[name] for name in ("batch_size", "memory", "seed", "threads")}
    return iter(IterableDataset(in_steps(), **options))


def sampler() -> Any:
    from xloader.torch import ChunkSampler

    options = {name: OPTIONS[name] for name in ("batch_size", "memory", "seed")}
    return iter(ChunkSampler(in_steps(), **options).batches())


STATES: dict[str, Make] = {
    **{name: EXPLAINED[name] for name in ("shuffled", "patches", "in order", "chosen")},
    **{name: EXPLAINED[name] for name in ("weighted", "rank 1 of 2", "forcings", "interleaved")},
    "transforms": lambda: transformed().map(partial(unchanged, fn=latitude)).loader(**OPTIONS),
    "rollout": lambda: xloader.Rollout(lambda epoch: in_steps(2 + epoch), **OPTIONS),
    "IterableDataset": torch_dataset,
    "ChunkSampler": sampler,
}


def states() -> str:
    """A state of each loader, and the ids of the batch that follows once it was loaded."""
    kept = _kept("states.json")
    lines = []
    for name, make in STATES.items():
        with _closed(make()) as loader:
            for _ in islice(loader, 3):
                pass
            new = json.loads(json.dumps(loader.state_dict()))
        old = kept.get(name, {}).get("state", new)
        state = old if _form(old) == _form(new) else new
        with _closed(make()) as loader:
            loader.load_state_dict(state)
            batch = next(iter(loader))
            ids = getattr(getattr(batch, "batch", batch), "ids", batch)
        found = {"following": np.asarray(ids).tolist(), "state": state}
        lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


@contextmanager
def _closed(loader: Any) -> Iterator[Any]:
    yield loader
    # The passes of PyTorch's doors have no end of their own.
    getattr(loader, "close", lambda: None)()


def _form(state: Any) -> Any:
    """A state without its hashes, and without what only earlier or later versions save."""
    if not isinstance(state, Mapping):
        return state
    left_out = ("samples", "check", "num_processes", "is_growing")
    return {key: _form(held) for key, held in state.items() if key not in left_out}


def _kept(name: str) -> Any:
    path = FOLDER / name
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


# Files


def caches() -> str:
    """The files of a mask and of half the statistics, and what is read where they are found."""
    files = _kept("caches.json").get("files")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if files is None:
            _compute(folder, part=(0, 2))
            files = {
                path.relative_to(folder).as_posix(): base64.b64encode(path.read_bytes()).decode()
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
        for place, text in files.items():
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(base64.b64decode(text))
        return json.dumps({"reads": _compute(folder), "files": files}, indent=1) + "\n"


def _compute(folder: Path, **options: Any) -> dict[str, int]:
    mask = xloader.open(fields()).window(time=2, stride=1).is_valid("t2m", cache=folder)
    store = CountingStore(stored())
    xloader.open(store).stats(path=folder / "stats.nc", threads=1, **options)
    return {"mask": mask.num_reads, "statistics": sum(map(is_chunk_key, store.reads.elements()))}


SUBJECTS: dict[str, Callable[[], str]] = {
    "names.txt": names,
    "commands.txt": commands,
    "explanations.txt": explanations,
    "reads.txt": reads,
    "states.json": states,
    "caches.json": caches,
}


def write() -> None:
    """Write all files anew, with the states and caches that they have."""
    for name, make in SUBJECTS.items():
        (FOLDER / name).write_text(make(), "utf-8")


if __name__ == "__main__":
    # Imported under its own name, which is part of some texts.
    from tests import ledger

    ledger.write()
