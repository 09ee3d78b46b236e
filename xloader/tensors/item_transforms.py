"""Functions on single samples, with the arguments that torchvision's datasets take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, fields
from typing import Any

import numpy as np
import torch

from xloader.core.counter_rng import Words
from xloader.core.messages import names_function
from xloader.core.option_checks import check_callable
from xloader.errors import OptionError, UnsupportedDataError
from xloader.loader.batches.batch import Batch
from xloader.loader.batches.row_list import Rows
from xloader.tensors.collate import refuse_device_tensors


@dataclass(frozen=True)
class ItemTransforms:
    """Functions that are applied to each sample before samples are collated.

    It can be pickled, also with lambdas and with functions that a notebook defines. Random numbers
    are keyed by the sample, where :meth:`apply` is given keys.
    """

    transform: Callable[..., Any] | None = None
    target_transform: Callable[..., Any] | None = None
    transforms: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, function in given.items():
            check_callable(
                name, function, "combine several with torchvision.transforms.Compose([...])"
            )
        if self.transforms is not None and (self.transform or self.target_transform):
            raise OptionError(
                "transforms cannot be combined with transform or target_transform",
                given=", ".join(name for name, function in given.items() if function),
                remedy="do the work of all in the function passed as transforms",
            )

    def __bool__(self) -> bool:
        return bool(self._names())

    def check(self, names: Sequence[str]) -> None:
        """Check that samples have the fields that the functions take."""
        if self.target_transform is not None and len(names) < 2:
            raise OptionError(
                "target_transform needs a second field, but samples have only one",
                given=f"fields {list(names)}",
                remedy="add targets with .targets(...), or pass transform instead",
            )

    def apply(self, batch: Batch, keys: Words | None) -> list[Any]:
        """Apply the functions to each sample of a batch."""
        rows = Rows(batch)
        if not self:
            return rows
        self.check(batch.names)
        changed: list[Any] = []
        with nullcontext() if keys is None else _generators_kept():
            for row, sample in enumerate(rows):
                if keys is not None:
                    _seed(int(keys[row]))
                with names_function(f"{self._names()} of sample {batch.ids[row]}"):
                    changed.append(self._call(sample))
        is_plain = all(type(values) is tuple and len(values) == len(batch) for values in changed)
        if not is_plain:
            return changed
        return Rows.of(changed, batch.names, batch.ids, batch.is_padding, batch.origin)

    def __reduce__(self) -> tuple[object, ...]:
        import cloudpickle

        try:
            return _unpickle, (cloudpickle.dumps(astuple(self)),)
        except Exception as error:
            error.add_note(f"raised while {self._names()} was pickled to be sent to a worker")
            raise

    def _names(self) -> str:
        return " or ".join(f.name for f in fields(self) if getattr(self, f.name) is not None)

    def _call(self, sample: tuple[Any, ...]) -> Any:
        changed: Any
        if self.transforms is not None:
            changed = self.transforms(*sample)
            changed = tuple(changed) if type(changed) is list else changed
            if len(sample) == 1 and not isinstance(changed, tuple | dict):
                changed = (changed,)
        else:
            functions = (self.transform, self.target_transform, *(None,) * len(sample))
            changed = tuple(
                value if function is None else function(value)
                for value, function in zip(sample, functions, strict=False)
            )
        if changed is None or (isinstance(changed, tuple) and any(v is None for v in changed)):
            raise UnsupportedDataError(
                f"{self._names()} returned None",
                remedy="return the array, even if the function changes it in place",
            )
        refuse_device_tensors(changed, f"the result of {self._names()}")
        return changed


def _unpickle(state: bytes) -> ItemTransforms:
    import cloudpickle

    return ItemTransforms(*cloudpickle.loads(state))


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Restore the state of the global random generators at the end of the context."""
    # Much augmentation code draws from the global generators, though NumPy advises against it.
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    of_python = random.getstate()
    of_torch = torch.default_generator.get_state()
    try:
        yield
    finally:
        np.random.set_state(of_numpy)  # noqa: NPY002
        random.setstate(of_python)
        torch.default_generator.set_state(of_torch)


def _seed(key: int) -> None:
    # `torch.manual_seed` takes 80 times as long, because it seeds the devices as well.
    torch.default_generator.manual_seed(key)
    random.seed(key)
    # NumPy and Python use the same algorithm: from the same words they would draw the same
    # numbers, hence the additional 1.
    np.random.seed([key & 0xFFFFFFFF, key >> 32, 1])  # noqa: NPY002
