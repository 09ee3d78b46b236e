"""Lanes and their sub-lanes: each worker gets whole batches of consecutive places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from xloader.order.lane_order import SubLanes


@given(
    num_samples=st.integers(1, 60),
    lanes=st.integers(1, 4),
    workers=st.integers(1, 5),
    share=st.integers(1, 5),
    drop_last=st.booleans(),
)
def test_steps_of_parts_are_the_steps_of_their_lane(
    num_samples: int, lanes: int, workers: int, share: int, drop_last: bool
) -> None:
    full, rest = divmod(num_samples, lanes * share)
    num_steps = full + (rest > 0 and not drop_last)
    sublanes = SubLanes(num_samples, lanes, workers, share, num_steps)
    dealt: list[int] = []
    for lane in range(lanes):
        numbers = range(lane * workers, (lane + 1) * workers)
        rows: dict[int, list[int]] = {}
        end = lane * num_samples // lanes
        for number in numbers:
            begin, last = sublanes.span(number)
            # Spans follow each other without a gap.
            assert begin == end <= last
            end = last
            steps = range(number % workers, num_steps, workers)
            assert len(steps) == sublanes.num_steps_of(number)
            assert sublanes.most_samples(number) == len(steps) * share
            if not drop_last:
                assert last - begin <= len(steps) * share
            for index, step in enumerate(steps):
                first = begin + index * share
                rows[step] = list(range(first, min(first + share, last)))
        assert end == (lane + 1) * num_samples // lanes
        for step in range(num_steps - 1):
            assert len(rows[step]) == share
        dealt += [place for step in rows for place in rows[step]]
    assert len(set(dealt)) == len(dealt)
    left_out = num_samples - len(dealt)
    assert left_out == (num_samples - num_steps * lanes * share if drop_last else 0)


def test_one_worker_has_whole_lanes() -> None:
    assert [SubLanes(10, 3).span(lane) for lane in range(3)] == [(0, 3), (3, 6), (6, 10)]
