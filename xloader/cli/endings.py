"""How commands end: results as text or JSON, exit codes, errors and warnings as plain lines.

==== ==================================================================
code meaning
==== ==================================================================
0    done
1    done, but something is missing or broken; the last line says what
2    an error; nothing was done, or a job stopped and may be run again
130  interrupted by Ctrl-C
==== ==================================================================
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Final

import click
import xarray as xr

from xloader.errors import XloaderError, printable
from xloader.show.json_values import to_json_value

INCOMPLETE: Final = 1
FAILED: Final = 2
INTERRUPTED: Final = 130

_ASYNCIO: Final = logging.getLogger("asyncio")
_BESIDE_AN_ERROR: Final = (
    "Task exception was never retrieved",
    "Task was destroyed but it is pending!",
)


def say(text: str, *, err: bool = False) -> None:
    """Print text of a command, with escapes for characters that a terminal obeys or hides."""
    click.echo(printable(text), err=err)


@contextmanager
def plain_endings(on_interrupt: str = "") -> Iterator[None]:
    """Context that prints errors and warnings without a traceback, and ends with an exit code."""
    _ASYNCIO.addFilter(_is_shown)
    with warnings.catch_warnings():
        # A text comes once, however often xarray opens the same file. The file and the line of a
        # warning say nothing to someone who has written neither.
        show = cache(partial(say, err=True))
        warnings.showwarning = lambda message, *_, **__: show(f"Warning: {message}")
        try:
            yield
        except XloaderError as error:
            say(f"Error: {error}", err=True)
            for note in getattr(error, "__notes__", ()):
                say(note, err=True)
            sys.exit(FAILED)
        except KeyboardInterrupt:
            say(f"Interrupted. {on_interrupt}".rstrip(), err=True)
            sys.exit(INTERRUPTED)


def end_incomplete(message: str) -> None:
    """Say what is missing or broken, and end with code 1."""
    say(message, err=True)
    sys.exit(INCOMPLETE)


def _is_shown(record: logging.LogRecord) -> bool:
    """Whether a record is shown: not if it is about work beside the error that is raised.

    zarr opens arrays at the same time, and raises the first error. asyncio logs those of other
    arrays with their tracebacks, and arrays that were still being opened when the process ended.
    """
    return not record.getMessage().startswith(_BESIDE_AN_ERROR)


def print_result(result: Any, *, is_json: bool) -> None:
    """Print a result on standard output."""
    if is_json:
        print_json(result)
    else:
        say(str(result))


def print_json(value: Any) -> None:
    """Print a result as JSON on standard output, where commands print nothing else."""
    say(json.dumps(to_json(value), indent=2))


def to_json(value: Any) -> Any:
    """Convert a result to the types of JSON; a Dataset in the form of its ``to_dict``."""
    return to_json_value(value, {xr.Dataset: _dataset_to_json})


def _dataset_to_json(dataset: xr.Dataset) -> Any:
    return to_json_value(dataset.to_dict(data="array"))
