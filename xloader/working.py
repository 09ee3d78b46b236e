"""One worker of a rank, in its own process: the batches that are its own, epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator

from xloader.carrier import Carrier
from xloader.engine.job import Delivery
from xloader.engine.run import Run
from xloader.errors import OptionError
from xloader.itinerary import Itinerary


class Worker:
    """Makes every ``workers``-th batch of a rank, reading no chunk that is another worker's.

    Parameters
    ----------
    itinerary : Itinerary
        What the rank does, planned for as many workers as there are.
    number : int
        Which of them this is: it makes the steps ``number``, ``number + workers``, ...
    num_ready : int
        Batches that are made, or wait for delivery, while the consumer is busy.
    num_cores : int
        Threads that load and gather, at most.

    Raises
    ------
    OptionError
        If its last batch would repeat a row of another worker's.
    """

    def __init__(
        self, itinerary: Itinerary, number: int, *, num_ready: int, num_cores: int
    ) -> None:
        check_padding(itinerary)
        self._itinerary = itinerary
        self._number = number
        self._carrier = Carrier(itinerary, num_ready=num_ready, num_cores=num_cores)
        self._run: Run | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether this came over a fork, where its threads and locks do not live."""
        return self._carrier.is_foreign

    def loaded(self) -> set[tuple[int, int]]:
        """Blocks in memory from earlier epochs, as (group, block)."""
        return self._carrier.loaded()

    def steps(self, epoch: int) -> Iterator[Delivery]:
        """Its batches of an epoch, in order. An iteration under way ends."""
        self.close()
        job = self._carrier.job(
            self._itinerary.epoch(epoch), self._itinerary.sublanes(self._number)
        )
        run = self._run = Run(job)
        try:
            for _ in range(job.walker.num_steps):
                delivery = run.take()
                assert delivery is not None, "a run delivers as many batches as it has steps"
                yield delivery
                # The consumer may keep it; here it would hold its memory one step longer.
                del delivery
        finally:
            run.close()

    def close(self) -> None:
        """Stop what is under way. More than once is fine."""
        if self._run is not None:
            self._run.close()
        self._run = None


def check_padding(itinerary: Itinerary) -> None:
    """Refuse what would leave a worker with a batch of padding alone, and no row to repeat.

    Raises
    ------
    OptionError
        With the number of workers that would do.
    """
    epoch = itinerary.epoch(0)
    sublanes = epoch.sublanes
    if sublanes.workers == 1 or itinerary.options.world.world_size == 1:
        return
    last_worker = (sublanes.num_steps - 1) % sublanes.workers
    spans = [sublanes.span(number) for number in itinerary.sublanes(last_worker)]
    if sublanes.num_steps > sublanes.workers or any(begin < end for begin, end in spans):
        return
    raise OptionError(
        "a worker would have nothing but padding",
        given=f"num_workers={sublanes.workers}, {sublanes.num_steps} batches on each rank",
        allowed=f"up to {max(sublanes.num_steps - 1, 1)} workers",
        remedy="use fewer workers, smaller batches, or drop_last=True",
    )
