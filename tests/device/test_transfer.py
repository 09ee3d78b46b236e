"""Batches cross to a device whole and in order, whatever the consumer and the copies do."""

from __future__ import annotations

import gc
import pickle
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import xloader
from tests.device.fake_hardware import BusHardware, FakeHardware, HastyHardware, LateHardware
from xloader import Batch, Samples
from xloader.device.transfer import Transfer
from xloader.device.unpacking import TensorUnpacker
from xloader.engine.buffers import ArrayKind
from xloader.engine.slot_layout import FieldBytes
from xloader.errors import (
    ClosedError,
    CorruptChunkError,
    EnvironmentWarning,
    OptionError,
    TransformError,
)
from xloader.testing import write_store
from xloader.transforms.packed_fields import PackedField

pytestmark = pytest.mark.filterwarnings("ignore::xloader.errors.PlanWarning")

UseDevice = Callable[[FakeHardware], FakeHardware]

NUM = 400


def make_samples(num: int = NUM, *, chunk: int = 8) -> Samples:
    """Make samples of four fields with several dtypes, whose values follow from the ids."""
    ids = np.arange(num)
    dataset = xr.Dataset(
        {
            "t": (("time", "x"), ids[:, None].repeat(16, 1).astype("f4")),
            "u": (("time", "x"), -ids[:, None].repeat(16, 1).astype("f4")),
            "k": (("time", "y"), ids[:, None].repeat(3, 1).astype("i2")),
            "d": ("time", ids / 2),
        }
    )
    chunks = {"t": (chunk, 16), "u": (chunk, 16), "k": (chunk, 3), "d": (chunk,)}
    source = xloader.open(write_store(dataset, chunks)).window(time=1)
    return source.field("t", "t").field("u", "u").field("k", "k").field("d", "d")


def is_right(batch: Batch) -> bool:
    """Whether all values of a batch are those of its ids."""
    expected = {"t": batch.ids, "u": -batch.ids, "k": batch.ids, "d": batch.ids / 2}
    return all(
        (batch[name].cpu().numpy().reshape(len(batch.ids), -1) == values[:, None]).all()
        for name, values in expected.items()
    )


def make_loader(num: int = NUM, **options: Any) -> xloader.Loader:
    return make_samples(num).loader(**{"batch_size": 1, "device": "cpu", **options})


def ids_of(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch.ids]


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("xloader-")]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_that_are_kept_are_whole(use_device: UseDevice, prefetch: int) -> None:
    hardware = use_device(BusHardware())
    plain = ids_of(make_samples().loader(batch_size=1, prefetch=prefetch, output="numpy"))
    with make_loader(prefetch=prefetch, threads=3) as loader:
        kept = list(loader)
    assert len(kept) == NUM == hardware.num_copies
    assert all(map(is_right, kept))
    assert ids_of(kept) == plain
    if prefetch:
        assert isinstance(hardware, BusHardware)
        assert hardware.num_reordered > 0


def test_batches_that_are_dropped_are_whole(use_device: UseDevice) -> None:
    hardware = use_device(BusHardware(1))
    with make_loader(prefetch=3) as loader:
        assert all(is_right(batch) for batch in loader)
        assert loader.device_path.ring.num_outside == 0  # type: ignore[union-attr]
    # Batches that nobody keeps need no more memory of the device than those under way.
    assert len(hardware.staged) <= 4


def test_batches_of_worker_processes_are_whole(use_device: UseDevice) -> None:
    hardware = use_device(BusHardware())
    options: dict[str, Any] = {
        "batch_size": 4,
        "prefetch": 2,
        "plan": xloader.PlanRules(lanes=2),
    }
    plain = ids_of(make_samples(200).loader(**options, output="numpy"))
    with make_loader(200, **options, processes=2) as loader:
        for _ in range(2):
            kept = list(loader)
            assert all(map(is_right, kept))
            assert len(kept) == 50
            loader.set_epoch(0)
            assert ids_of(kept) == plain
    assert hardware.num_copies == 100


def checksums_hold(hardware: FakeHardware, prefetch: int) -> bool:
    with make_loader(prefetch=prefetch, threads=2) as loader:
        found = [is_right(batch) for batch in loader]
    return all(found)


def test_the_latest_copies_are_whole(use_device: UseDevice) -> None:
    assert checksums_hold(use_device(LateHardware(NUM, 2)), 2)


def test_a_slot_that_is_used_again_too_early_is_noticed(use_device: UseDevice) -> None:
    """The same check fails if nothing waits for a copy before its slot is filled again."""
    assert not checksums_hold(use_device(HastyHardware(NUM, 2)), 2)


@pytest.mark.filterwarnings("ignore::xloader.errors.EpochWarning")
def test_nothing_is_left_of_an_abandoned_iterator(use_device: UseDevice) -> None:
    use_device(BusHardware(2))
    loader = make_loader()
    for _ in range(6):
        iterator = iter(loader)
        first = [next(iterator) for _ in range(5)]
        del iterator
        gc.collect()
        assert all(map(is_right, first))
        assert not running()
    assert all(map(is_right, loader))
    loader.close()
    assert not running()


def test_a_consumer_that_raises(use_device: UseDevice) -> None:
    use_device(BusHardware(3))
    calls = []

    def collate(rows: Any) -> Batch:
        calls.append(rows.batch)
        if len(calls) % 3 == 0:
            raise ValueError("a bad batch")
        return rows.batch

    kept, errors = [], []
    with make_loader(60, collate_fn=collate, prefetch=0) as loader:
        iterator = iter(loader)
        for _ in range(60):
            try:
                kept.append(next(iterator))
            except TransformError as error:
                # The errors are kept, and with them their frames.
                errors.append(error)
    assert len(kept) == 40
    assert len(errors) == 20
    assert all(map(is_right, calls))


def test_failed_epochs_whose_errors_are_kept_do_not_hold_up_the_next(
    use_device: UseDevice,
) -> None:
    use_device(BusHardware(4))
    store = write_store(xr.Dataset({"t": (("time", "x"), np.ones((40, 4), "f4"))}), {"t": (4, 4)})
    samples = xloader.open(store).window(time=1)
    key = next(key for key in store._store_dict if key.startswith("t/c/5"))
    store._store_dict[key] = type(store._store_dict[key]).from_bytes(b"damaged")
    errors = []
    with samples.loader(batch_size=2, shuffle=False, device="cpu", prefetch=0) as loader:
        for _ in range(5):
            with pytest.raises(CorruptChunkError) as caught:
                list(loader)
            errors.append(caught.value)
    assert len(errors) == 5


def test_close_in_the_middle(use_device: UseDevice) -> None:
    hardware = use_device(BusHardware(5))
    loader = make_loader()
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(7)]
    loader.close()
    with pytest.raises(ClosedError):
        next(iterator)
    assert all(map(is_right, kept))
    assert not running()
    # Pinned memory is released at once, but not before its copies are done.
    assert hardware.pinned == []
    assert hardware.num_settled > 0


def test_a_loader_that_nobody_holds_unpins_its_memory(use_device: UseDevice) -> None:
    hardware = use_device(FakeHardware())
    loader = make_loader(50)
    assert all(map(is_right, loader))
    assert len(hardware.pinned) == 1
    del loader
    gc.collect()
    assert hardware.pinned == []


def test_slots_are_pinned_once_and_counted(use_device: UseDevice) -> None:
    hardware = use_device(FakeHardware())
    with make_samples().loader(batch_size=50, device="cpu", prefetch=2) as loader:
        expected = loader.explain()
        assert hardware.pinned == []
        for _ in range(3):
            assert all(map(is_right, loader))
        (block,) = hardware.pinned
        batch_nbytes = 50 * (2 * 64 + 6 + 8)
        assert 3 * batch_nbytes <= block.nbytes <= 3 * (batch_nbytes + 3 * 256)
        assert block.nbytes <= loader.report().peak_nbytes <= expected.peak_nbytes


def test_a_state_is_that_of_the_batch_in_hand(use_device: UseDevice) -> None:
    """Copies run ahead of the consumer, and the state does not."""
    use_device(BusHardware(7))
    with make_loader(60, batch_size=7) as loader:
        whole = ids_of(loader)
    with make_loader(60, batch_size=7) as loader:
        iterator = iter(loader)
        seen = [next(iterator) for _ in range(3)]
        state = loader.state_dict()
    with make_loader(60, batch_size=7) as again:
        again.load_state_dict(state)
        rest = list(again)
    assert ids_of(seen) + ids_of(rest) == whole
    assert all(map(is_right, rest))


@pytest.mark.parametrize(
    "change",
    [lambda t: t + 0.0, lambda t: t[..., ::-1], np.asfortranarray],
    ids=["new", "turned", "in another order"],
)
def test_results_of_map_cross_too(change: Any, use_device: UseDevice) -> None:
    """They are copied into pinned memory, one batch at a time."""
    hardware = use_device(BusHardware(9))

    def function(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign(t=(ds.t.dims, change(ds.t.values)))

    samples = make_samples(200).map(function)
    with samples.loader(batch_size=3, device="cpu", threads=3) as loader:
        for _ in range(2):
            assert all(map(is_right, loader))
        (block,) = hardware.pinned
        assert block.nbytes < 3 * (2 * 64 + 6 + 8) + 4 * 256
    assert not running()
    del block
    assert hardware.pinned == []


class LosingHardware(FakeHardware):
    """Fails at one copy: when it is queued, or on its way."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self._when, self._num_waits = when, 0

    def copy(self, source: Any, target: Any, after: Any) -> Any:
        copied = super().copy(source, target, after)
        if self._when == "queued" and self.num_copies == 7:
            raise RuntimeError("device lost")
        return copied

    def wait(self, copied: Any) -> None:
        self._num_waits += 1
        if self._when == "on its way" and self._num_waits == 7:
            raise RuntimeError("device lost")


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("when", ["queued", "on its way"])
def test_a_copy_that_fails_ends_the_epoch_and_takes_no_memory(
    when: str, prefetch: int, use_device: UseDevice
) -> None:
    hardware = use_device(LosingHardware(when))
    with make_loader(60, prefetch=prefetch) as loader:
        # The user may keep the error, and with its frames what they refer to.
        with pytest.raises(RuntimeError, match="device lost") as caught:
            list(loader)
        assert caught.value.__traceback__ is not None
        for _ in range(2):
            assert all(map(is_right, loader))
        assert loader.device_path.ring.num_outside == 0  # type: ignore[union-attr]
    assert len(hardware.staged) <= 4
    assert not running()


def test_threads_that_share_an_iterator(use_device: UseDevice) -> None:
    use_device(BusHardware(10))
    kept: list[Batch] = []
    with make_loader(300) as loader:
        iterator = iter(loader)
        threads = [threading.Thread(target=lambda: kept.extend(iterator)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(ids_of(kept)) == list(range(300))
    assert all(map(is_right, kept))


def test_memory_that_cannot_be_pinned_is_used_all_the_same(use_device: UseDevice) -> None:
    class Refusing(BusHardware):
        def pin(self, block: Any) -> None:
            raise RuntimeError("out of memory\nmore")

    use_device(Refusing())
    with make_loader(50) as loader:
        with pytest.warns(EnvironmentWarning, match=r"could not be pinned \(out of memory\)"):
            batches = list(loader)
        assert all(map(is_right, batches))
        assert all(map(is_right, loader))


def test_a_loader_is_pickled_without_its_memory(use_device: UseDevice) -> None:
    use_device(FakeHardware())
    with make_loader(50) as loader:
        first = ids_of(loader)
        other = pickle.loads(pickle.dumps(loader))
    assert ids_of(other) == first
    other.close()


def test_the_processor_itself_gets_no_copies() -> None:
    with make_loader(50, device="cpu") as loader:
        assert loader.device_path is None
        assert all(map(is_right, loader))
    with make_loader(50, device=xloader.OnDevice("cpu", transform=lambda batch: batch)) as loader:
        assert all(map(is_right, loader))
        assert loader.device_path.ring is None  # type: ignore[union-attr]


def test_fields_keep_their_dtypes(use_device: UseDevice) -> None:
    use_device(FakeHardware())
    names = ["?", "u1", "i1", "u2", "i4", "i8", "f2", "f4", "f8"]
    values = {n: (("time", "x"), np.arange(40).reshape(10, 4).astype(n)) for n in names}
    samples = xr.Dataset(values).xloader.window(time=2)
    with (
        samples.loader(batch_size=3, device="cpu") as loader,
        samples.loader(batch_size=3) as plain,
    ):
        for batch, other in zip(loader, plain, strict=True):
            for name in names:
                assert batch[name].dtype == other[name].dtype
                assert torch.equal(batch[name].to(torch.float64), other[name].to(torch.float64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("is_own_stream", [False, True])
def test_a_gpu_gets_whole_batches(is_own_stream: bool) -> None:
    """The consumer's stream is far behind its thread, so that copies and readings overlap."""
    stream = torch.cuda.Stream() if is_own_stream else torch.cuda.current_stream()
    with make_loader(device="cuda") as loader, torch.cuda.stream(stream):
        kept = []
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            kept.append(batch)
            assert batch.t.is_cuda
        assert all(map(is_right, kept))
        assert loader.device_path.ring.num_outside == 0  # type: ignore[union-attr]


def test_each_process_finds_its_own_gpu() -> None:
    way = Transfer("cuda", torch.from_numpy, is_elsewhere=True)
    assert pickle.loads(pickle.dumps(way))._given == "cuda"


def test_other_kinds_of_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(device=torch.device("xpu", 0))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: other)
    with pytest.raises(OptionError, match="device='xpu'"):
        make_samples(8).loader(device="xpu")


def test_fields_are_unpacked_while_the_loader_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    i2, f4 = np.dtype("i2"), np.dtype("f4")
    field = PackedField("t", (3,), i2, i2, (0.5,), (10.0,), (), (np.nan,), f4)
    way = Transfer("cpu", torch.from_numpy, packed_fields=(field,), is_elsewhere=True)
    make = TensorUnpacker.of

    def close_meanwhile(*arguments: Any) -> TensorUnpacker:
        way._unpackers = {}
        return make(*arguments)

    monkeypatch.setattr(TensorUnpacker, "of", close_meanwhile)
    place = FieldBytes("t", 0, ArrayKind((1, 3), i2))
    stored = torch.from_numpy(np.array([2, 4, 6], "i2").view("u1"))
    assert way._unpack(place, stored).tolist() == [[11.0, 12.0, 13.0]]


def test_values_that_may_be_too_large_do_not_cross_packed(use_device: UseDevice) -> None:
    values = np.full((4, 3), 300000.0)
    encoding = {"t": {"dtype": "int16", "scale_factor": 10.0, "_FillValue": -1}}
    dataset = xr.Dataset({"t": (("time", "x"), values)})
    samples = xloader.open(write_store(dataset, {"t": (2, 3)}, encoding=encoding)).window(time=1)
    use_device(FakeHardware())
    with samples.loader(batch_size=2, device=xloader.OnDevice("cpu", dtype="bfloat16")) as loader:
        assert next(iter(loader))[0].dtype == torch.bfloat16
        assert loader._packed_fields
    with samples.loader(batch_size=2, device=xloader.OnDevice("cpu", dtype="float16")) as loader:
        assert not loader._packed_fields
        with pytest.raises(OptionError, match="is too large for float16"):
            list(loader)


def test_memory_for_wider_values_is_planned() -> None:
    dataset = xr.Dataset({"t": (("time", "x"), np.ones((40, 100), "f2"))})
    samples = xloader.open(write_store(dataset, {"t": (2, 100)})).window(time=1)
    budgets = [
        samples.loader(batch_size=4, device=xloader.OnDevice(dtype=dtype)).plan.budget.batch_nbytes
        for dtype in (None, "float32", "bfloat16")
    ]
    assert budgets == [800, 1600, 800]
