"""The way of a loader's batches to its device.

::

    gathered into a slot -> copied to staging memory -> unpacked into tensors -> transformed
      engine's threads        stream of the copies        consumer's stream

On the processor itself there is nothing to copy: tensors lie over the gathered arrays.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from xloader.core.messages import names_function
from xloader.core.options import LoaderOptions
from xloader.core.output_dtypes import OutputDtype, converted_dtype, largest_of
from xloader.device.copies import PinnedScratch, RunCopies, SentBatch, StagingPool
from xloader.device.hardware import Hardware, is_elsewhere, make_hardware
from xloader.device.pinned_slots import PinnedBlock, PinnedSlots, SlotRing
from xloader.device.unpacking import TensorUnpacker
from xloader.engine.batches import Delivery
from xloader.engine.buffers import ArrayKind, Buffer, MakeMemory
from xloader.engine.slot_layout import FieldBytes
from xloader.errors import ForkError, OptionError, TransformError, UnsupportedDataError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.loader.ranks.finishing import HandOver
from xloader.recipe.layout import make_layouts
from xloader.recipe.recipe import Recipe
from xloader.transforms.outputs import Output
from xloader.transforms.packed_fields import PackedField, packed_fields
from xloader.transforms.rng import NO_EPOCH, Chance
from xloader.transforms.steps import Map


@dataclass(frozen=True)
class DeviceTransform:
    """A function that is called with each batch on the device, in the consumer's stream."""

    function: Callable[..., Any]
    is_random: bool
    number: int

    def apply(self, batch: Batch, device: torch.device, chance: Chance) -> Batch:
        """Call the function, and check what it returns."""
        more = (chance.rng(batch.ids, self.number),) if self.is_random else ()
        with names_function(f"the transform of OnDevice on a batch of {batch.num_samples} samples"):
            result = self.function(batch, *more)
        tensors = _in_order(result, batch)
        for name, tensor in zip(batch.names, tensors, strict=True):
            _check_tensor(name, tensor, batch.num_samples, device)
        return batch.with_arrays(tensors)

    def try_on(self, zeros: Batch, device: torch.device) -> Batch:
        """Call the function with a batch of zeros, to find its mistakes before anything is read."""
        try:
            return self.apply(zeros, device, NO_EPOCH)
        except TransformError as error:
            raise OptionError(
                f"a transform failed on zeros: {error.what}",
                remedy="make it work on any batch, even of zeros; its own error is the cause of "
                "this one. With random=True, it is called with random numbers as well",
            ) from error.__cause__


def _in_order(result: Any, batch: Batch) -> list[Any]:
    """The fields of a result, in the order of the batch."""
    if isinstance(result, Batch):
        result = result.as_dict()
    given: object = type(result).__name__
    if isinstance(result, Mapping):
        if set(result) == set(batch.names):
            return [result[name] for name in batch.names]
        given = list(result)
    elif isinstance(result, tuple | list):
        if len(result) == len(batch):
            return list(result)
        given = f"{len(result)} values"
    is_other = isinstance(result, Mapping)
    raise OptionError(
        "the transform of OnDevice "
        + ("changed the fields" if is_other else "returned something else"),
        given=given,
        allowed=f"the fields {list(batch.names)}, as a batch, a dict or a tuple",
        remedy="return batch.with_arrays([...]) with one tensor for each field",
    )


def _check_tensor(name: str, tensor: Any, num_rows: int, device: torch.device) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UnsupportedDataError(
            f"the transform of OnDevice returned no tensor for the field {name!r}",
            given=type(tensor).__name__,
        )
    if tensor.device != device:
        raise OptionError(
            f"the transform of OnDevice moved the field {name!r} to another device",
            given=str(tensor.device),
            remedy="compute on the tensors' own device: pass device=batch[0].device",
        )
    if not tensor.ndim or len(tensor) != num_rows:
        raise OptionError(
            f"the transform of OnDevice changed the number of samples of the field {name!r}",
            given=f"shape {tuple(tensor.shape)} for {num_rows} rows",
            remedy="keep the first dimension as it is: ids belong to its rows",
        )


_REMEDY = "make it from a first batch: out = batch.with_arrays([t.clone() for t in batch])"


def check_out(out: Any, example: Batch) -> None:
    """Check that a batch can hold what is delivered. The number of rows is not checked."""
    if not isinstance(out, Batch):
        raise _misfit("out must be a Batch", type(out).__name__, "Batch")
    if out.names != example.names:
        raise _misfit("out has other fields", list(out.names), list(example.names))
    for name, tensor, expected in zip(out.names, out, example, strict=True):
        if not isinstance(tensor, torch.Tensor):
            what = f"the field {name!r} of out is no tensor"
            raise _misfit(what, type(tensor).__name__, "torch.Tensor")
        given, allowed = _look(tensor), _look(expected)
        if given != allowed or tensor.ndim != expected.ndim:
            raise _misfit(f"the field {name!r} of out does not fit the batches", given, allowed)


def check_rows(out: Batch, batch_size: int, last_size: int) -> None:
    """Check that batches have as many rows as ``out``."""
    rows = {len(tensor) for tensor in out}
    if rows != {batch_size}:
        what = "out has another number of rows than the batches"
        raise _misfit(what, f"{sorted(rows)} rows", f"{batch_size} rows")
    if last_size != batch_size:
        raise OptionError(
            "the last batch of an epoch is shorter than out",
            given=f"{last_size} rows in the last batch, {batch_size} in out",
            remedy="pass drop_last=True",
        )


def _misfit(what: str, given: object, allowed: object) -> OptionError:
    return OptionError(what, given=given, allowed=allowed, remedy=_REMEDY)


def _look(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} (n, {', '.join(map(str, tensor.shape[1:]))}) on {tensor.device}"


_KINDS: Final = ("cuda", "mps", "cpu")
"""Kinds of devices. Others may have streams, which their copies would have to be marked in."""


class Transfer:
    """Brings the batches of one loader to a device; see `DevicePath`.

    Memory, and the stream of the copies, are made when they are first needed. They stay until the
    loader is closed.
    """

    def __init__(
        self,
        device: torch.device | str,
        hand_over: HandOver,
        transform: DeviceTransform | None = None,
        out: Batch | None = None,
        packed_fields: tuple[PackedField, ...] = (),
        output_dtype: OutputDtype | None = None,
        *,
        is_elsewhere: bool,
    ) -> None:
        self._given = device
        self._known_device: torch.device | None = None
        self._hand_over = hand_over
        self._transform = transform
        self._out = out
        self.packed_fields = packed_fields
        self._output_dtype = output_dtype
        self.copies_batches = is_elsewhere
        self._unpackers: dict[str, TensorUnpacker] = {}
        self._pid = os.getpid()
        self._known_hardware: Hardware | None = None
        self.ring: SlotRing | None = None
        self._shared: PinnedSlots | None = None
        self._known_refusal = ""
        self._scratch: PinnedScratch | None = None
        self._pool: StagingPool | None = None

    @property
    def device(self) -> torch.device:
        """The device, with its number where there may be several."""
        if self._known_device is None:
            self._known_device = resolve_device(self._given)
        return self._known_device

    @property
    def refusal(self) -> str:
        """Why the system refused to pin the slots; empty if it did not, or nobody has asked."""
        # Another thread may close the loader meanwhile.
        slots = self.ring or self._shared
        if slots is not None:
            # A report may be asked for after the loader is closed.
            self._known_refusal = slots.refusal or self._known_refusal
        return self._known_refusal

    def check_outputs(self, outputs: tuple[Output, ...], num_rows: int) -> None:
        """Check that the fields can be on the device, and try what is to be done there on zeros."""
        dtypes = [converted_dtype(output.dtype, self._output_dtype) for output in outputs]
        names = [output.name for output in outputs]
        check_dtypes(self.device, dict(zip(names, dtypes, strict=True)))
        rows = 0 if self._transform is None else num_rows
        tensors = [
            torch.zeros((rows, *output.shape), dtype=self._torch_dtype(dtype), device=self.device)
            for output, dtype in zip(outputs, dtypes, strict=True)
        ]
        example = Batch(tensors, names, np.arange(rows))
        if self._transform is not None:
            example = self._transform.try_on(example, self.device)
        if self._out is not None:
            check_out(self._out, example)

    def check(self, batch_size: int, last_size: int) -> None:
        """Check that this process may use the device; see `DevicePath.check`."""
        refuse_fork(self.device)
        if os.getpid() != self._pid and self._known_hardware is not None:
            raise _fork_error(self.device, "a process that was forked from the loader's own")
        if self._out is not None:
            check_rows(self._out, batch_size, last_size)

    def make_memory(self, num_steps: int) -> MakeMemory | None:
        """The maker of a ring of slots; None on the processor itself."""
        if not self.copies_batches:
            return None

        def make(kinds: Sequence[ArrayKind], num_batches: int) -> SlotRing:
            # One batch fewer than elsewhere: the one that the user holds is on the device.
            num_slots = max(1, min(num_batches - 1, num_steps))
            if self.ring is None or not self.ring.is_for(kinds, num_slots):
                self.ring = SlotRing(self._hardware(), kinds, num_slots)
            return self.ring

        return make

    def pin_slots(self, memory: Buffer, num_slots: int) -> None:
        """Pin the memory that worker processes share; see `DevicePath.pin_slots`."""
        if not self.copies_batches:
            return
        block = PinnedBlock(
            self._hardware(),
            memory,
            "The memory is that of the worker processes. Each batch is copied into other pinned "
            "memory first, by a thread of this process.",
        )
        self._shared = PinnedSlots(num_slots, memory.nbytes // num_slots, block)
        self._known_refusal = block.refusal

    def unpin_slots(self) -> None:
        """Unpin the memory that worker processes share."""
        shared, self._shared = self._shared, None
        # In a forked child, the memory is that of the parent.
        if shared is not None and os.getpid() == self._pid:
            # Others may still refer to it, such as an iterator that the user has kept.
            shared.close()

    def outbox(self) -> RunCopies | None:
        """The copies of a new run; None on the processor itself."""
        if not self.copies_batches:
            return None
        hardware = self._hardware()
        if self._scratch is None or self._pool is None:
            self._scratch, self._pool = PinnedScratch(hardware), StagingPool(hardware)
        slots: PinnedSlots | None = self.ring
        if self._shared is not None and not self._shared.refusal:
            slots = self._shared
        return RunCopies(hardware, slots, self._scratch, self._pool)

    def deliver(self, delivery: Delivery, chance: Chance, origin: BatchOrigin) -> Batch:
        """Make the user's batch; see `DevicePath.deliver`."""
        sent = delivery.sent
        if sent is None:
            names = list(delivery.arrays)
            tensors = [self._hand_over(array) for array in delivery.arrays.values()]
        else:
            assert isinstance(sent, SentBatch)
            names, tensors = sent.names, sent.receive(self._unpack)
        batch = Batch(tensors, names, delivery.ids, delivery.is_padding, origin)
        if self._transform is not None:
            batch = self._transform.apply(batch, self.device, chance)
        if self._out is None:
            return batch
        for tensor, target in zip(batch, self._out, strict=True):
            if tensor is not target:
                target.copy_(tensor)
        return batch.with_arrays(self._out)

    def close(self) -> None:
        """Release the slots and the memory of the device."""
        if os.getpid() != self._pid:
            return
        self._known_refusal = self.refusal
        self.unpin_slots()
        # Others may still refer to these, such as an iterator that the user has kept.
        if self.ring is not None:
            self.ring.close()
        if self._scratch is not None:
            self._scratch.close()
        if self._pool is not None:
            self._pool.clear()
        self.ring = self._scratch = self._pool = None
        self._unpackers = {}

    def __reduce__(self) -> tuple[object, ...]:
        # Memory and streams belong to this process.
        options = (self._transform, self._out, self.packed_fields, self._output_dtype)
        make = partial(Transfer, is_elsewhere=self.copies_batches)
        # Each process has a current GPU of its own, so the device goes as it was given.
        return make, (self._given, self._hand_over, *options)

    def _unpack(self, place: FieldBytes, stored: torch.Tensor) -> torch.Tensor:
        """Make a tensor of a field from its bytes in the staging memory."""
        target: torch.Tensor | None = None
        if self._out is not None and self._transform is None:
            target = self._out[place.name]
        if unpacker := self._unpacker(place.name):
            return unpacker.unpack(stored, target)
        values = stored.view(self._torch_dtype(place.kind.dtype)).view(place.kind.shape)
        return values.clone() if target is None else target.copy_(values)

    def _unpacker(self, name: str) -> TensorUnpacker | None:
        """The unpacker of a field that is gathered as stored; None for another one."""
        # Another thread may close the loader meanwhile.
        unpackers = self._unpackers
        if self.packed_fields and not unpackers:
            unpackers = self._unpackers = {
                field.name: TensorUnpacker.of(field, self.device, self._output_dtype)
                for field in self.packed_fields
            }
        return unpackers.get(name)

    def _torch_dtype(self, dtype: np.dtype) -> torch.dtype:
        torch_dtype: torch.dtype = self._hand_over(np.empty(0, dtype)).dtype
        return torch_dtype

    def _hardware(self) -> Hardware:
        if self._known_hardware is None:
            self._pid = os.getpid()
            self._known_hardware = make_hardware(self.device)
        return self._known_hardware


def make_transfer(recipe: Recipe, options: LoaderOptions, hand_over: HandOver) -> Transfer | None:
    """The way to the device that a loader's options ask for.

    None if tensors over the gathered arrays are all that is asked for.
    """
    chosen = options.on_device
    given = "cpu" if chosen.device is None else chosen.device
    device = resolve_device(given)
    is_away = chosen.device is not None and is_elsewhere(device)
    if not is_away and chosen.transform is None and chosen.out is None:
        return None
    transform = None
    if chosen.transform is not None:
        number = sum(isinstance(step, Map) and step.random for step in recipe.steps)
        transform = DeviceTransform(chosen.transform, chosen.random, number)
    fields: tuple[PackedField, ...] = ()
    if is_away:
        has_float64 = device.type != "mps"
        largest = largest_of(chosen.dtype)
        fields = packed_fields(
            recipe, make_layouts(recipe), has_float64=has_float64, largest=largest
        )
    return Transfer(
        given, hand_over, transform, chosen.out, fields, chosen.dtype, is_elsewhere=is_away
    )


def resolve_device(device: Any) -> torch.device:
    """Find a device on this machine, with its number."""
    try:
        refuse_fork(torch.device(device))
        resolved = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        if isinstance(error, ForkError):
            raise
        raise OptionError(
            "PyTorch cannot use this device here",
            given=f"device={str(device)!r}: {str(error).splitlines()[0].split('. ')[0]}",
            remedy='pass device="cpu"; for a GPU, see if torch.cuda.is_available(); if not, '
            "install PyTorch with CUDA",
        ) from error
    # Tensors of "meta" have shapes and no values: models are tried with them.
    if resolved.type not in (*_KINDS, "meta"):
        raise OptionError(
            "loaders do not bring batches to this kind of device",
            given=f"device={str(device)!r}",
            allowed=", ".join(_KINDS),
            remedy="leave device out, and move batches with batch.to(device)",
        )
    return resolved


def refuse_fork(device: torch.device) -> None:
    """Refuse a GPU in a process that was forked from one that used it."""
    # PyTorch has no public name for this, and its own error comes only with the first operation.
    is_bad = getattr(torch.cuda, "_is_in_bad_fork", None)
    if device.type == "cuda" and is_bad is not None and is_bad():
        raise _fork_error(device, "a process that was forked from one that used CUDA")


def _fork_error(device: torch.device, given: str) -> ForkError:
    return ForkError(
        f"{device} cannot be used after a fork",
        given=given,
        remedy='start processes with "spawn" or "forkserver"; in workers of a DataLoader, make '
        "batches without device=, and move them in the training process",
    )


def check_dtypes(device: torch.device, dtypes: Mapping[str, np.dtype]) -> None:
    """Refuse fields of a dtype that the device lacks."""
    wide = [name for name, dtype in dtypes.items() if dtype == np.float64]
    if device.type == "mps" and wide:
        raise OptionError(
            "Apple's GPUs have no float64",
            given=f"device={str(device)!r}, fields of float64: {', '.join(map(repr, wide))}",
            remedy='pass device=xloader.OnDevice(device, dtype="float32")',
        )
