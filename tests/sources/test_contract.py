"""The contract of a source, tested on every kind of source."""

from __future__ import annotations

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.sources import kinds
from tests.sources.concat_kinds import concat_kind
from tests.sources.join_kinds import merged_kind, repeated_kind, viewed_kind
from tests.sources.kinds import Opened
from tests.sources.store_kinds import STORE_KINDS
from xloader.errors import UnknownNameError
from xloader.sources.base import Read, Source
from xloader.sources.open.open_source import open_source

JOIN_KINDS = {"merged": merged_kind, "viewed": viewed_kind, "repeated": repeated_kind}
KINDS = {**kinds.KINDS, **STORE_KINDS, "concat": concat_kind, **JOIN_KINDS}


@pytest.fixture(scope="module", params=sorted(KINDS))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return KINDS[request.param](tmp_path_factory.mktemp("kind"), kinds.make_dataset())


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(actual, expected.astype(actual.dtype), strict=True)


def test_offers_the_variables_of_numbers(opened: Opened):
    source, oracle = opened.source, opened.oracle
    assert isinstance(source, Source)
    assert set(source.variables) == {"t", "m", "flag", "s"}
    for name, variable in source.variables.items():
        assert variable.name == name
        assert variable.dims == oracle[name].dims
        assert variable.shape == oracle[name].shape
        assert variable.dtype.isnative
        assert variable.dtype.kind == oracle[name].dtype.kind
        assert len(variable.chunks) == len(variable.shape)
        assert variable.attrs == oracle[name].attrs
        is_through_xarray = source.is_through_xarray(name)
        assert ("block by block through xarray" in source.path_of(name)) == is_through_xarray


def test_chunks_cover_each_variable(opened: Opened):
    for name in opened.source.variables:
        same(kinds.read_all(opened.source, name), opened.oracle[name].values)


def test_cuts_equal_isel(opened: Opened):
    cuts = {
        "whole": lambda n: slice(0, n),
        "open": lambda n: slice(None, n, None),
        "inner": lambda n: slice(min(1, n - 1), n),
        "stepped": lambda n: slice(0, n, 2),
        "first": lambda n: slice(0, 1, 1),
        "picked": lambda n: np.unique(np.array([0, n // 2, n - 1])),
    }
    for name, variable in opened.source.variables.items():
        ends = ({0, num - 1} for num in kinds.num_chunks(variable))
        for chunk in itertools.product(*ends):
            spans = [kinds.span(variable, axis, i) for axis, i in enumerate(chunk)]
            # Each kind of cut is used along all dimensions, then together with the next kind.
            for number, turn in itertools.product(range(len(cuts)), (0, 1)):
                makers = [
                    list(cuts.values())[(number + turn * axis) % len(cuts)]
                    for axis in range(len(spans))
                ]
                cut = tuple(
                    maker(stop - start) for maker, (start, stop) in zip(makers, spans, strict=True)
                )
                wanted = {
                    dim: np.arange(start, stop)[part]
                    for dim, (start, stop), part in zip(variable.dims, spans, cut, strict=True)
                }
                actual = kinds.read(opened.source, name, chunk, cut)
                same(actual, opened.oracle[name].isel(wanted).values)


def test_writes_to_any_strides_and_nowhere_else(opened: Opened):
    variable = opened.source.variables["t"]
    chunk = (0, 0, 0)
    expected = kinds.read(opened.source, "t", chunk)
    shape = expected.shape
    canvas = np.full((shape[2] * 2, shape[0] + 2, shape[1]), 77, variable.stored_dtype)
    out = canvas[::-2, 1:-1].transpose(1, 2, 0)
    kinds.read_into(opened.source, "t", chunk, kinds.whole_cut(variable, chunk), out)
    same(out if variable.packing is None else variable.packing.unpack(out), expected)
    out[...] = 77
    assert (canvas == 77).all()


def test_threads_read_what_one_thread_reads(opened: Opened):
    variable = opened.source.variables["t"]
    chunks = list(np.ndindex(kinds.num_chunks(variable))) * 4
    expected = {chunk: kinds.read(opened.source, "t", chunk) for chunk in set(chunks)}
    with ThreadPoolExecutor(4) as pool:
        actual = pool.map(lambda chunk: kinds.read(opened.source, "t", chunk), chunks)
    for chunk, values in zip(chunks, actual, strict=True):
        same(values, expected[chunk])


def test_a_store_that_waits_is_asked_when_chunks_are_fetched(
    request: pytest.FixtureRequest, opened: Opened
):
    source, kind = opened.source, request.node.callspec.params["opened"]
    variable = source.variables["t"]
    is_waiting = kind.startswith(("obstore", "fsspec", "icechunk"))
    assert {source.is_waiting(name) for name in source.variables} == {is_waiting}
    chunks = list(np.ndindex(kinds.num_chunks(variable)))[:3]
    cuts = [kinds.whole_cut(variable, chunk) for chunk in chunks]
    fetched = [
        source.fetch([Read("t", chunk, cut)]) for chunk, cut in zip(chunks, cuts, strict=True)
    ]
    assert all((one.nbytes > 0) == is_waiting for one in fetched)
    outs = [np.empty([part.stop for part in cut], variable.stored_dtype) for cut in cuts]
    # Decode on other threads than those that fetched.
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda one, out: one.decode([out]), fetched, outs))
    for chunk, out, outcome in zip(chunks, outs, outcomes, strict=True):
        values = out if variable.packing is None else variable.packing.unpack(out)
        same(values, kinds.read(source, "t", chunk))
        assert (outcome.num_missing, outcome.num_requests >= 1) == (0, True)
        assert outcome.fetch_seconds >= 0
        assert outcome.fetch_seconds > 0 or not is_waiting


def test_pickles_small_and_reads_on(opened: Opened):
    kinds.read(opened.source, "t", (0, 0, 0))
    data = pickle.dumps(opened.source)
    assert len(data) < 64 * 1024
    copy = pickle.loads(data)
    assert copy.variables == opened.source.variables
    assert copy.fingerprint == opened.source.fingerprint
    assert copy.name == opened.source.name
    for name in copy.variables:
        same(kinds.read_all(copy, name), opened.oracle[name].values)
    xr.testing.assert_equal(copy.coordinates(), opened.oracle.coords.to_dataset())


def test_fingerprint_tells_the_data_and_not_the_opening(
    request: pytest.FixtureRequest, opened: Opened, tmp_path: Path
):
    assert opened.reopen().fingerprint == opened.source.fingerprint
    kind = request.node.callspec.params["opened"]
    longer = tmp_path / "longer"
    longer.mkdir()
    other = KINDS[kind](longer, kinds.make_dataset(num_times=12))
    assert other.source.fingerprint != opened.source.fingerprint


def test_coordinates_are_xarrays_own(opened: Opened):
    coordinates = opened.source.coordinates()
    assert not coordinates.data_vars
    xr.testing.assert_identical(
        coordinates.drop_attrs(), opened.oracle.coords.to_dataset().drop_attrs()
    )
    assert set(coordinates.xindexes) == {"time", "lat"}


def test_unknown_variable_lists_what_is_there(tmp_path: Path):
    opened = KINDS["zarr-direct-local"](tmp_path, kinds.make_dataset())
    for subject in (str(tmp_path / "a.zarr"), opened.oracle):
        with pytest.raises(UnknownNameError, match="did you mean 'flag'") as caught:
            open_source(subject, variables=["t", "flags"])
        assert {"'t'", "'m'", "'flag'", "'s'"} == set(caught.value.allowed.split(", "))
        assert set(open_source(subject, variables=("flag", "t")).variables) == {"flag", "t"}
