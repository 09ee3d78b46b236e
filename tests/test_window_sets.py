"""Sets of windows: rank, nth and contains are the same however the windows are kept."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xloader.core import window_sets
from xloader.core.window_sets import (
    BitPacker,
    WindowBits,
    WindowList,
    WindowRuns,
    WindowSet,
    smallest_of_bits,
    smallest_of_list,
)


@st.composite
def flags_of_windows(draw: st.DrawFn) -> np.ndarray:
    """Draw flags, in short or in long runs, around the edges of words."""
    size = draw(st.sampled_from([1, 2, 63, 64, 65, 127, 128, 200, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    flags = rng.random(size) < draw(st.sampled_from([0.0, 0.02, 0.5, 0.9, 1.0]))
    if draw(st.booleans()):
        flags = np.repeat(flags, 40)[:size]
    return flags


def kinds_of(flags: np.ndarray) -> list[WindowSet]:
    bits = WindowBits.of_flags(flags)
    return [bits, bits.runs(), WindowList(len(flags), np.flatnonzero(flags))]


@given(flags_of_windows())
def test_each_kind_answers_as_numpy(flags: np.ndarray) -> None:
    windows = np.flatnonzero(flags)
    for own in kinds_of(flags):
        assert len(own) == len(windows)
        before = np.concatenate([[0], np.cumsum(flags)])
        assert own.rank(np.arange(len(flags) + 1)).tolist() == before.tolist()
        assert own.nth(np.arange(len(windows))).tolist() == windows.tolist()
        assert own.contains(np.arange(len(flags))).tolist() == flags.tolist()
        assert np.concatenate([[], *own.pieces()]).tolist() == windows.tolist()
        assert own.as_bits().flags(0, len(flags)).tolist() == flags.tolist()
        again = pickle.loads(pickle.dumps(own))
        assert again.rank(np.array([len(flags)])).tolist() == [len(windows)]


@given(flags_of_windows(), st.lists(st.integers(0, 70), max_size=8))
def test_bits_that_come_in_pieces(flags: np.ndarray, sizes: list[int]) -> None:
    packer = BitPacker(len(flags))
    edges = [0, *np.minimum(np.cumsum(sizes), len(flags)).astype(int).tolist(), len(flags)]
    for begin, end in itertools.pairwise(edges):
        packer.add(flags[begin:end])
    whole = WindowBits.of_flags(flags)
    assert packer.bits().words.tolist() == whole.words.tolist()
    pieces = [b + np.flatnonzero(flags[b:e]) for b, e in itertools.pairwise(edges)]
    assert WindowBits.of_pieces(len(flags), pieces).words.tolist() == whole.words.tolist()


@given(flags_of_windows(), st.integers(0, 99))
def test_and_or_not(flags: np.ndarray, seed: int) -> None:
    others = np.random.default_rng(seed).random(len(flags)) < 0.5
    one, other = WindowBits.of_flags(flags), WindowBits.of_flags(others)
    for bits, wanted in (
        (one & other, flags & others),
        (one | other, flags | others),
        (~one, ~flags),
    ):
        assert bits.words.tolist() == WindowBits.of_flags(wanted).words.tolist()


@given(flags_of_windows())
def test_the_smallest_kind_is_kept(flags: np.ndarray) -> None:
    kinds = kinds_of(flags)
    bits, *others = (own.nbytes for own in kinds)
    # Bits answer faster, so they may take twice as much.
    least = bits if bits <= 2 * min(others) else min(others)
    windows = np.flatnonzero(flags)
    for own in (smallest_of_bits(kinds[0]), smallest_of_list(len(flags), windows)):
        assert own.nbytes == least
        assert own.nth(np.arange(len(own))).tolist() == windows.tolist()


@pytest.mark.parametrize("piece", [1, 3, 64, 1000])
def test_pieces_of_any_size(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_sets, "_PIECE_SIZE", piece)
    flags = np.random.default_rng(piece).random(200) < 0.6
    bits = WindowBits.of_flags(flags)
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    assert bits.num_runs == len(edges) // 2
    runs = bits.runs()
    assert (runs.begins.tolist(), runs.ends.tolist()) == (edges[::2].tolist(), edges[1::2].tolist())
    assert np.concatenate(list(bits.pieces())).tolist() == np.flatnonzero(flags).tolist()
    assert np.concatenate(list(runs.pieces())).tolist() == np.flatnonzero(flags).tolist()


def test_a_run_takes_as_much_however_long() -> None:
    """A range of a trillion windows is a run, for which no window is listed."""
    runs = WindowRuns(10**12, np.array([5]), np.array([10**12]))
    assert len(runs) == 10**12 - 5
    assert runs.nth(np.array([10**11])).tolist() == [10**11 + 5]
    assert runs.nbytes < 100
