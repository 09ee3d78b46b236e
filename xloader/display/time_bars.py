"""Where the time of an epoch went, as bars for a notebook."""

from __future__ import annotations

from collections.abc import Mapping

from xloader.core.count_text import show_count
from xloader.html.cards import CardPart, CardSection
from xloader.html.share_bars import draw_shares


def time_parts(
    seconds: float, wait_seconds: float, busy_seconds: Mapping[str, float], num_threads: int
) -> list[CardPart]:
    """Bars of the time of the training loop and of the loader's threads.

    `seconds`: seconds of the epoch. `wait_seconds`: seconds in which the consumer waited.
    `busy_seconds`: seconds of the threads by stage.
    """
    if seconds <= 0:
        return []
    waited = min(wait_seconds, seconds)
    training = {"waited for batches": waited, "at work": seconds - waited}
    busy = sum(busy_seconds.values())
    idle = max(num_threads * seconds - busy, 0.0)
    return [
        CardSection(
            "time",
            [
                draw_shares("The training loop", training, "at work", 5),
                draw_shares(_threads(num_threads), {**busy_seconds, "idle": idle}, "idle"),
            ],
        )
    ]


def _threads(num_threads: int) -> str:
    return f"{show_count(num_threads, 'thread')} of the loader"
