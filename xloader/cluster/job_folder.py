"""The folder of a job of `xloader.dask.run`, and digests by which a later call knows the job."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import CodeType
from typing import Any, Final

from xloader.cluster.checkpoint_places import FolderPlace
from xloader.core.options import LoaderOptions
from xloader.errors import OptionError, TargetError
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import whole_file, writing
from xloader.transforms.steps import module_of


def code_digest(code: CodeType) -> str:
    """SHA-256 of the instructions, names and constants of a function and of those within it.

    The code of functions that it calls, and the values that it refers to, are not part of it.
    """
    return hashlib.sha256(repr(list(_facts(code))).encode()).hexdigest()


def _facts(code: CodeType) -> Iterator[object]:
    yield code.co_code
    yield code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _facts(value)
        else:
            # A set has another order in each process.
            yield sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)


_JOB_FILE: Final = "job.json"
_VERSION: Final = 3

_COMPARED: Final = (
    *("batch_size", "shuffle", "seed", "drop_last", "output", "on_error", "processes"),
    *("on_device.dtype", "on_device.random", "plan.lanes", "plan.spread", "ranks.world_size"),
)
"""Options that decide which samples a rank gets, and as what."""


def open_folder(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    options: LoaderOptions,
    state: Mapping[str, Any],
    *,
    overwrite: bool,
) -> tuple[FolderPlace, dict[str, Any]]:
    """Open the folder of a job, which is made if it is not there; with the state of the job."""
    folder = _as_folder(path)
    earlier = _read_job(folder)
    compared = {name.rpartition(".")[2]: attrgetter(name)(options) for name in _COMPARED}
    facts = {"function": describe_function(fn), **compared}
    if earlier is not None and not overwrite:
        before = earlier["facts"]
        differing = [name for name, value in facts.items() if before.get(name) != value]
        if differing:
            raise TargetError(
                f"the folder holds the checkpoints of a job with another {', '.join(differing)}",
                given=", ".join(f"{name}={facts[name]!r}" for name in differing) + f" for {folder}",
                allowed=", ".join(f"{name}={before.get(name)!r}" for name in differing),
                remedy="pass the same as before, another path=, or overwrite=True to begin anew",
            )
        job = earlier
    else:
        token = uuid.uuid4().hex[:12]
        job = {"version": _VERSION, "token": token, "facts": facts, "state": dict(state)}
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / _JOB_FILE) as file:
            file.write(json.dumps(job, indent=1).encode())
        if earlier is not None:
            shutil.rmtree(folder / earlier["token"], ignore_errors=True)
    place = folder / job["token"]
    place.mkdir(exist_ok=True)
    return FolderPlace(place), job["state"]


def describe_function(fn: Callable[..., Any]) -> str:
    """Name of a function, and a digest of its code, which a new process finds again.

    The code of functions that it calls, and the values that it refers to, are not part of it.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = f"{module_of(fn)}.{getattr(fn, '__qualname__', type(fn).__qualname__)}"
    inner = fn if hasattr(fn, "__code__") else getattr(fn, "__func__", type(fn).__call__)
    code = getattr(inner, "__code__", None)
    if not isinstance(code, CodeType):
        return name
    return f"{name} {code_digest(code)[:12]}"


def _as_folder(path: object) -> Path:
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else b""
    if not isinstance(text, str) or not text or "://" in local_path(text):
        raise OptionError(
            "path is not the path of a folder",
            given=repr(path),
            remedy="pass a folder that the client and all workers reach under the same path",
        )
    # Workers may have another working directory.
    return Path(os.path.abspath(os.path.expanduser(local_path(text))))


def _read_job(folder: Path) -> dict[str, Any] | None:
    """The job that lies in a folder; None if nothing is there yet."""
    if not folder.exists():
        return None
    # A client that is killed while it begins a job leaves this file alone.
    partial = (folder / _JOB_FILE).with_suffix(".partial")
    if folder.is_dir() and not set(folder.iterdir()) - {partial}:
        return None
    try:
        job: dict[str, Any] = json.loads((folder / _JOB_FILE).read_bytes())
        token = job["token"]
        # It becomes part of a path.
        is_token = isinstance(token, str) and len(token) == 12 and token.isalnum()
        if job["version"] != _VERSION or not is_token or not {"facts", "state"} <= job.keys():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TargetError(
            "the folder holds no job of xloader.dask.run of this version",
            given=str(folder),
            remedy="choose another path=, where nothing lies",
        ) from error
    return job
