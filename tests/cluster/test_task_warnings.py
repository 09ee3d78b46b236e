"""Warnings of tasks reach the process that waits for them, once, and none is lost."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.cluster.conftest import distributed, local_cluster
from xloader.cluster.cluster_tasks import ClusterTasks
from xloader.core.messages import warn_caller
from xloader.errors import NanWarning, OptionError, XloaderWarning


class LocalWarning(NanWarning):
    """A warning that only this file has."""


def warn(shared: None, unit: int) -> int:
    warn_caller(f"unit {unit % 2}", NanWarning)
    warnings.warn("of a user", LocalWarning, stacklevel=1)
    warnings.warn("of NumPy", RuntimeWarning, stacklevel=1)
    return unit


def warn_and_fail(shared: None, unit: int) -> None:
    warn_caller("before the error", NanWarning)
    raise OptionError("it failed")


def warnings_of(tasks: ClusterTasks) -> list[tuple[str, type[Warning]]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert sorted(unit for unit, _ in tasks.run("warning", warn, None, range(9))) == [*range(9)]
    return sorted((str(own.message), own.category) for own in caught)


def test_each_text_is_shown_once(client: Any) -> None:
    for _ in range(2):
        found = warnings_of(ClusterTasks(client))
        told = [(text, kind) for text, kind in found if issubclass(kind, XloaderWarning)]
        assert told == [("of a user", NanWarning), ("unit 0", NanWarning), ("unit 1", NanWarning)]
        assert ("of NumPy", RuntimeWarning) in found


def test_those_of_a_task_that_fails_are_notes_of_its_error(client: Any) -> None:
    with pytest.raises(OptionError) as caught:
        list(ClusterTasks(client).run("failing", warn_and_fail, None, range(1)))
    assert caught.value.__notes__ == ["NanWarning: before the error"]


def test_workers_of_this_process_warn_as_they_are() -> None:
    with (
        local_cluster(1, processes=False) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len([own for own in warnings_of(ClusterTasks(client)) if own[1] is NanWarning]) == 9
