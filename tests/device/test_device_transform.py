"""The user's function on the device, and the user's tensors that batches are written to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import xloader
from tests.device.fake_hardware import BusHardware, FakeHardware
from tests.flat_options import grouped
from xloader import Batch, Rng, Samples
from xloader.device import transfer
from xloader.device.transfer import check_dtypes
from xloader.errors import ForkError, OptionError, TransformError, UnsupportedDataError
from xloader.testing import CountingStore, write_store

UseDevice = Callable[[FakeHardware], FakeHardware]

NUM = 40


@pytest.fixture(params=["itself", "elsewhere"])
def hardware(request: pytest.FixtureRequest, use_device: UseDevice) -> FakeHardware | None:
    """Run a test on the processor itself, and on a device beside it."""
    return use_device(BusHardware()) if request.param == "elsewhere" else None


def make_samples() -> tuple[Samples, CountingStore]:
    ids = np.arange(NUM)[:, None].repeat(4, 1)
    dataset = xr.Dataset(
        {"t": (("time", "x"), ids.astype("f4")), "k": (("time", "x"), ids.astype("i4"))}
    )
    store = CountingStore(write_store(dataset, {"t": (4, 4), "k": (4, 4)}))
    return xloader.open(store).window(time=1).inputs("t").targets("k"), store


def make_loader(**options: Any) -> xloader.Loader:
    return make_samples()[0].loader(**grouped(**{"batch_size": 8, "device": "cpu", **options}))


def make_out(rows: int = 8, **changes: Any) -> Batch:
    shape, names = (rows, 1, 1, 4), ["inputs", "targets"]
    tensors = {"inputs": torch.zeros(shape), "targets": torch.zeros(shape, dtype=torch.int32)}
    tensors |= changes
    return Batch([tensors[name] for name in names], names, np.arange(rows))


@pytest.mark.parametrize("kind", ["batch", "dict", "tuple"])
def test_what_the_function_returns_is_delivered(hardware: Any, kind: str) -> None:
    def double(batch: Batch) -> Any:
        inputs, targets = batch
        if kind == "dict":
            return {"targets": targets, "inputs": inputs * 2}
        return (
            (inputs * 2, targets) if kind == "tuple" else batch.with_arrays([inputs * 2, targets])
        )

    with make_loader(device_transform=double) as loader:
        for batch in loader:
            assert isinstance(batch, Batch)
            assert (batch.inputs[:, 0, 0, 0].numpy() == 2 * batch.ids).all()
            assert (batch.targets[:, 0, 0, 0].numpy() == batch.ids).all()


def noise_of(loader: xloader.Loader) -> dict[int, float]:
    with loader:
        return {
            int(i): float(x)
            for batch in loader
            for i, x in zip(batch.ids, batch.inputs[:, 0, 0, 0], strict=True)
        }


def add_noise(batch: Batch, rng: Rng) -> Batch:
    noise = torch.as_tensor(rng.uniform(dtype="float32"), device=batch.inputs.device)
    return batch.with_arrays([noise[:, None, None, None].expand(-1, 1, 1, 4), batch.targets])


def test_random_numbers_are_those_of_the_sample(hardware: Any) -> None:
    found = noise_of(make_loader(device_transform=add_noise, device_random=True, seed=3))
    other = noise_of(
        make_loader(device_transform=add_noise, device_random=True, seed=3, batch_size=5, lanes=5)
    )
    expected = Rng(range(NUM), seed=3).uniform(dtype="float32").tolist()
    assert found == other == dict(enumerate(expected))
    assert found != noise_of(make_loader(device_transform=add_noise, device_random=True, seed=4))


def test_epochs_and_functions_draw_other_numbers(hardware: Any) -> None:
    loader = make_loader(device_transform=add_noise, device_random=True)
    list(loader)
    assert noise_of(loader) == dict(
        enumerate(Rng(range(NUM), epoch=1).uniform(dtype="float32").tolist())
    )
    samples = make_samples()[0].map(lambda ds, rng: ds, random=True)
    second = noise_of(
        samples.loader(
            batch_size=8, device=xloader.OnDevice("cpu", transform=add_noise, random=True)
        )
    )
    assert second != dict(enumerate(Rng(range(NUM)).uniform(dtype="float32").tolist()))


@pytest.mark.parametrize("has_transform", [False, True])
def test_batches_are_written_to_out(hardware: Any, has_transform: bool) -> None:
    out, options = make_out(), {}
    if has_transform:
        options["device_transform"] = lambda batch: (batch.inputs + 1, batch.targets)
    with make_loader(out=out, **options) as loader:
        ids = []
        for batch in loader:
            assert batch.inputs is out.inputs
            assert batch.targets is out.targets
            assert (batch.inputs[:, 0, 0, 0].numpy() == batch.ids + has_transform).all()
            assert (batch.targets[:, 0, 0, 0].numpy() == batch.ids).all()
            ids += batch.ids.tolist()
    assert sorted(ids) == list(range(NUM))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"out": [1]}, "out must be a Batch"),
        ({"out": Batch([torch.zeros(8)], ["x"], np.arange(8))}, "out has other fields"),
        ({"out": make_out(inputs=np.zeros((8, 1, 1, 4)))}, "'inputs' of out is no tensor"),
        ({"out": make_out(inputs=torch.zeros(8, 1, 4, 1))}, "'inputs' of out does not fit"),
        ({"out": make_out(inputs=torch.zeros(8, 4))}, "'inputs' of out does not fit"),
        ({"out": make_out(targets=torch.zeros(8, 1, 1, 4))}, "'targets' of out does not fit"),
        ({"out": make_out(targets=torch.zeros(8, device="meta"))}, "'targets' of out does not"),
        ({"device_transform": 3}, "transform cannot be called"),
        ({"device_random": True}, "random=True has no function"),
        ({"device_transform": lambda b: b, "device_random": 2}, "random"),
        ({"device_transform": lambda b: 1 / 0}, "failed on zeros.*ZeroDivisionError"),
        ({"device_transform": lambda b: b, "device_random": True}, "failed on zeros"),
        ({"device_transform": lambda b: None}, "returned something else. Given: NoneType"),
        ({"device_transform": lambda b: b[:1]}, "returned something else. Given: 1 values"),
        ({"device_transform": lambda b: {"a": b.inputs}}, "changed the fields"),
        ({"device_transform": lambda b: [t[1:] for t in b]}, "changed the number of samples"),
        ({"device_transform": lambda b: b.to("meta")}, "moved the field 'inputs' to another"),
        (
            {"device_transform": lambda b: b, "output": "numpy", "device": None},
            "transform is for tensors",
        ),
        ({"out": make_out(), "output": "numpy", "device": None}, "out is for tensors"),
        ({"device": "cuda:99"}, "cannot use this device"),
        ({"device": "nowhere"}, "cannot use this device"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    changes: dict[str, Any], message: str
) -> None:
    samples, store = make_samples()
    before = store.num_reads
    with pytest.raises(OptionError, match=message):
        samples.loader(**grouped(**{"batch_size": 8, "device": "cpu", **changes}))
    assert store.num_reads == before


def test_a_result_that_is_no_tensor_is_refused(hardware: Any) -> None:
    with pytest.raises(UnsupportedDataError, match="no tensor for the field 'inputs'"):
        make_loader(device_transform=lambda b: [t.numpy() for t in b])


def test_a_function_that_fails_later_is_named(hardware: Any) -> None:
    def fail(batch: Batch) -> Batch:
        if batch.inputs.any():
            raise StopIteration
        return batch

    with (
        make_loader(device_transform=fail) as loader,
        pytest.raises(TransformError, match="a batch of 8 samples failed"),
    ):
        list(loader)


def test_out_of_another_size_is_refused_before_anything_is_read(hardware: Any) -> None:
    samples, store = make_samples()
    for rows, batch_size, message in (
        (7, 8, "another number of rows"),
        (9, 9, "pass drop_last=True"),
    ):
        loader = samples.loader(
            batch_size=batch_size, device=xloader.OnDevice("cpu", out=make_out(rows))
        )
        before = store.num_reads
        with pytest.raises(OptionError, match=message):
            iter(loader)
        assert store.num_reads == before
    with samples.loader(
        batch_size=9, device=xloader.OnDevice("cpu", out=make_out(9)), drop_last=True
    ) as loader:
        assert len(list(loader)) == 4
    # The last batch of several ranks is filled up to what another rank has, not to its full size.
    device = xloader.OnDevice("cpu", out=make_out(9))
    ranks = {"batch_size": 9, "device": device, "world": xloader.World(1, 3)}
    with pytest.raises(OptionError, match=r"5 rows in the last batch.*drop_last=True"):
        iter(samples.loader(**ranks))
    with samples.loader(**ranks, drop_last=True) as loader:
        assert len(list(loader)) == 1


def test_float64_is_refused_on_apple_gpus() -> None:
    dtypes = {"x": np.dtype("f8"), "y": np.dtype("f4")}
    with pytest.raises(OptionError, match=r"no float64\. Given: device='mps'.*'x'.*float32"):
        check_dtypes(torch.device("mps"), dtypes)
    check_dtypes(torch.device("cuda", 0), dtypes)
    check_dtypes(torch.device("mps"), {"y": np.dtype("f4")})


def test_a_gpu_is_refused_in_a_forked_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(ForkError, match=r'cuda cannot be used after a fork.*"spawn"'):
        make_loader(device="cuda")


def test_a_loader_is_refused_after_a_fork(
    use_device: UseDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_device(FakeHardware())
    with make_loader() as loader:
        list(loader)
        monkeypatch.setattr(transfer.os, "getpid", lambda: -1)
        with pytest.raises(ForkError, match="forked from the loader's own"):
            iter(loader)
        monkeypatch.undo()


def test_a_collate_function_gets_the_batch_of_the_device(hardware: Any) -> None:
    with make_loader(
        device_transform=lambda b: (b.inputs + 1, b.targets), collate_fn=lambda rows: rows.batch
    ) as loader:
        for batch in loader:
            assert (batch.inputs[:, 0, 0, 0].numpy() == batch.ids + 1).all()
