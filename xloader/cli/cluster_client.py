"""The option ``--scheduler``: a dask cluster that runs a command's job."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from xloader.cli.option_texts import option
from xloader.errors import ClusterError, MissingDependencyError, OptionError

_SECONDS: Final = 8.0
"""Within this time a scheduler answers."""

_ADDRESS: Final = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://\S+")


takes_scheduler: Final = option(
    "--scheduler",
    "ADDRESS",
    "Scheduler of a dask cluster that does the work: tcp://host:8786, or the path of its "
    "scheduler file. --memory then holds for each worker process.",
)


@contextmanager
def cluster_client(scheduler: str | None) -> Iterator[dict[str, Any]]:
    """The keyword ``client`` of a verb, as a client that is there for the time of the context.

    `scheduler`: None stands for this process.
    """
    if scheduler is None:
        yield {}
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingDependencyError(
            "a dask cluster needs the library distributed, which is not installed",
            remedy="run pip install '.[dask]' in a clone of xloader, or leave --scheduler out",
        ) from error
    address = _address_of(scheduler)
    try:
        client = _on_a_thread(
            # The verb is given the client, so it need not be the active one.
            partial(Client, address, timeout=_SECONDS, set_as_default=False)
        )
    except (OSError, ValueError, ImportError) as error:
        raise ClusterError(
            "the scheduler of the dask cluster does not answer",
            given=f"--scheduler {scheduler}: {str(error) or 'no answer'}",
            remedy="check the address, and that the scheduler runs with the same packages",
        ) from error
    with client:
        yield {"client": client}


def _on_a_thread(connect: Callable[[], Any]) -> Any:
    """Make a client. distributed waits for ever for what listens and never speaks."""
    made: Future[Any] = Future()

    def make() -> None:
        try:
            made.set_result(connect())
        except Exception as error:
            made.set_exception(error)

    threading.Thread(target=make, name="xloader-connect", daemon=True).start()
    return made.result(timeout=_SECONDS + 1)


def _address_of(scheduler: str) -> str:
    """The address itself, or the one that a scheduler file holds."""
    if _ADDRESS.fullmatch(scheduler):
        return scheduler
    try:
        if not os.path.isfile(scheduler):
            raise ValueError("there is no such file")
        with open(scheduler, encoding="utf-8") as file:
            return str(json.load(file)["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            "the option --scheduler names no scheduler",
            given=f"--scheduler {scheduler} ({error})",
            remedy="pass an address such as tcp://host:8786, or the path of a scheduler file: "
            "dask scheduler --scheduler-file scheduler.json",
        ) from error
