"""dask clusters of worker processes on this machine, for tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import dask
import pytest

distributed = pytest.importorskip("distributed", reason="distributed is not installed")


@pytest.fixture(scope="package")
def shared_cluster() -> Iterator[Any]:
    """A cluster of two workers for all tests of this folder that harm none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with local_cluster(2) as cluster:
            yield cluster


@pytest.fixture
def client(shared_cluster: Any) -> Iterator[Any]:
    """A client of the shared cluster, which is active during one test."""
    with distributed.Client(shared_cluster) as client:
        yield client


@pytest.fixture
def client_to_close(shared_cluster: Any) -> Iterator[Any]:
    """A client of the shared cluster that the test closes itself."""
    # Closed within its own ``with`` statement, it would stay dask's scheduler.
    client = distributed.Client(shared_cluster)
    yield client
    client.close()


@pytest.fixture(scope="package")
def mortal_cluster() -> Iterator[Any]:
    """A cluster of four workers for all tests that kill some of them: dask starts them again."""
    # A task that kills one more worker than this is given up; each takes seconds to start.
    with (
        warnings.catch_warnings(),
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
    ):
        warnings.simplefilter("ignore")
        with local_cluster(4) as cluster:
            yield cluster


@pytest.fixture
def mortal_client(mortal_cluster: Any) -> Iterator[Any]:
    """A client of the mortal cluster, which is active during one test.

    Wait for four workers where they are needed: those of other tests may be about to start again.
    """
    with distributed.Client(mortal_cluster) as client:
        yield client


def local_cluster(num_workers: int, **options: Any) -> Any:
    """A cluster of worker processes with one thread each; use it in a ``with`` statement."""
    # Idle workers would take a tenth of a core for statistics of what they do.
    dask.config.set({"distributed.worker.profile.enabled": False})
    # dask looks 15 s after a worker was lost whether it is there again. If it has just been killed
    # once more, the cluster has a worker less from then on.
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 hour"})
    return distributed.LocalCluster(
        n_workers=num_workers, threads_per_worker=1, dashboard_address=":0", **options
    )
