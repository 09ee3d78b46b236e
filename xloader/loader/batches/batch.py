"""A batch: a tuple of stacked arrays, with field names and sample ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from xloader.core.axis import Ints
from xloader.core.messages import unknown
from xloader.errors import OptionError, UnsupportedDataError, printable
from xloader.loader.batches.batch_origin import BatchOrigin
from xloader.recipe.names import SAMPLE
from xloader.transforms.batch_datasets import show_labels

if TYPE_CHECKING:
    from xloader.show.canvas import Picture


class Batch(tuple[Any, ...]):
    """Samples stacked on axis 0: one array or tensor per field.

    A tuple of its fields, which unpacks like one. ``batch.inputs`` and ``batch["inputs"]`` give a
    field by name; the second form also where a batch has an attribute of that name, such as
    ``ids``.

    It is also a tree of its arrays for :mod:`torch`, JAX and optree; ids, flags and labels of what
    they make of it are None.

    Parameters
    ----------
    arrays : iterable of array
        The fields, each of shape ``(n, ...)``.
    names : iterable of str, optional
        Names of the fields; ``type(batch)(arrays)`` has those of ``batch``.
    ids : numpy.ndarray, optional
        Ids of the samples in row order, int64, shape ``(n,)``.
    is_padding : numpy.ndarray, optional
        True where a row only repeats another sample, to fill up a short batch or with
        ``on_error="skip"``; bool, shape ``(n,)``. All False by default.
    origin : BatchOrigin, optional
        The samples that the batch is of, for its labels.
    source : numpy.ndarray, optional
        With :func:`xloader.interleave`, name of the set of each row, str, shape ``(n,)``.

    Raises
    ------
    OptionError
        If the numbers of names and arrays differ, or those of flags and ids.

    Examples
    --------
    >>> batch = Batch([np.zeros((2, 3)), np.ones(2)], ["inputs", "targets"], np.array([7, 1]))
    >>> inputs, targets = batch
    >>> batch.targets is targets, batch["inputs"] is inputs, batch.ids.tolist()
    (True, True, [7, 1])
    >>> batch
    Batch(inputs=float64 (2, 3), targets=float64 (2,), num_samples=2)
    >>> type(batch)(array.astype("float32") for array in batch)
    Batch(inputs=float32 (2, 3), targets=float32 (2,), rebuilt without ids)
    """

    _fields: tuple[str, ...] = ()
    _ids: Ints | None
    _is_padding: NDArray[np.bool_] | None
    _origin: BatchOrigin | None
    _source: NDArray[np.str_] | None

    def __new__(  # noqa: D102
        cls,
        arrays: Iterable[Any],
        names: Iterable[str] | None = None,
        ids: Ints | None = None,
        is_padding: NDArray[np.bool_] | None = None,
        origin: BatchOrigin | None = None,
        source: NDArray[np.str_] | None = None,
    ) -> Batch:
        names = cls._fields if names is None else tuple(names)
        subclass = cls if names == cls._fields else _kind_of(names)
        batch = super().__new__(subclass, arrays)
        num_ids = 0 if ids is None else len(ids)
        batch._ids = None if ids is None else np.asarray(ids, np.int64)
        if is_padding is None and ids is not None:
            is_padding = np.zeros(num_ids, bool)
        batch._is_padding = None if is_padding is None else np.asarray(is_padding, bool)
        batch._origin = origin
        batch._source = source
        num_flags = 0 if is_padding is None else len(is_padding)
        if len(subclass._fields) != len(batch) or num_flags != num_ids:
            raise OptionError(
                "the parts of a batch do not match",
                given=f"{len(batch)} arrays, {len(subclass._fields)} names, "
                f"{num_ids} ids, {num_flags} flags",
            )
        if cls is Batch:  # A batch that is made of another one may be compiled, and this may not.
            register(subclass)
        return batch

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the fields."""
        return self._fields

    @property
    def ids(self) -> Ints | Any:
        """Ids of the samples in row order, int64, shape ``(n,)``; None if they are not known."""
        return self._ids

    @property
    def is_padding(self) -> NDArray[np.bool_] | Any:
        """True where a row only repeats another sample, bool, ``(n,)``; None if ids are None."""
        return self._is_padding

    @property
    def source(self) -> NDArray[np.str_] | None:
        """Name of the set of each row, str, shape ``(n,)``; None if all are of one set.

        :func:`xloader.interleave` makes batches of several sets. There, ``ids`` are the ids of a
        row's own set.
        """
        return self._source

    @property
    def num_samples(self) -> int:
        """Number of rows, padding included."""
        return len(self[0] if self._ids is None else self._ids)

    @property
    def origin(self) -> BatchOrigin | None:
        """The samples that the batch is of; None for a batch that no loader has made."""
        return self._origin

    @property
    def coords(self) -> xr.Coordinates:
        """The labels of the batch, as :attr:`xarray.Dataset.coords`. No value is read.

        Labels that all samples share are indexes; others are ``<dim>_label`` along ``sample``.
        Padded rows have the labels of the sample that they repeat.

        Raises
        ------
        OptionError
            As :meth:`to_xarray` does, but whatever the shapes of the fields.

        Examples
        --------
        >>> import xarray as xr, xloader
        >>> series = xr.Dataset({"sst": ("time", np.arange(6.0))}, {"time": np.arange(6) * 10})
        >>> loader = series.xloader.window(time=2).loader(shuffle=False, output="numpy")
        >>> next(iter(loader)).coords["time_label"].values.tolist()
        [[0, 10], [20, 30], [40, 50]]
        """
        return self._require_origin().coords(self.ids)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._fields:
                raise unknown(key, self._fields, "field")
            return super().__getitem__(self._fields.index(key))
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return self[name]
        raise AttributeError(
            f"a batch has no attribute or field {name!r}; its fields are {self._fields}"
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._fields})

    def __reduce__(self) -> tuple[object, ...]:
        state = (tuple(self), self._fields, self._ids, self._is_padding, self._origin, self._source)
        return Batch, state

    def __repr__(self) -> str:
        fields = [f"{name}={_look(array)}" for name, array in self.as_dict().items()]
        rows = "rebuilt without ids" if self._ids is None else f"num_samples={self.num_samples}"
        return printable(f"Batch({', '.join(fields)}, {rows})")

    def _repr_html_(self) -> str:
        from xloader.show.sample_cards import batch_card

        recipe = None if self._origin is None else self._origin.recipe
        fields = self.as_dict()
        return batch_card(fields, self.ids, self.is_padding, self._source, recipe).to_html()

    def as_dict(self) -> dict[str, Any]:
        """Dict of the fields by name."""
        return dict(zip(self._fields, self, strict=True))

    _asdict = as_dict

    def to_xarray(self) -> xr.Dataset:
        """The batch as a Dataset with labels, channel names and attributes. No value is read.

        Returns
        -------
        xarray.Dataset
            As ``samples.to_xarray(batch.ids)``, with the arrays of the batch, whose memory it
            shares. Tensors on a device are copied; bfloat16 becomes float32.

        Raises
        ------
        OptionError
            If the samples are not known, because no loader has made the batch, or another process
            has pickled it; if a function of single samples, of the device or a ``collate_fn`` has
            changed names or shapes; if a function of :meth:`Samples.map` makes labels from values.

        Examples
        --------
        >>> import xarray as xr, xloader
        >>> series = xr.Dataset({"sst": ("time", np.arange(6.0))}, {"time": np.arange(6) * 10})
        >>> samples = series.xloader.window(time=2)
        >>> batch = next(iter(samples.loader(output="numpy")))
        >>> batch.to_xarray().identical(samples.to_xarray(batch.ids))
        True
        """
        return self._require_origin().to_xarray(self.as_dict(), self.ids)

    def require_ids(self) -> Ints:
        """Ids of the samples, as :attr:`ids`, where nothing can be done without them."""
        if self._ids is None:
            raise OptionError(
                "the samples of this batch are not known",
                given="a batch that another library has rebuilt from its arrays alone, to cast, "
                "move or cut them",
                remedy="ask it before it is handed on, or make ids a field: collate_fn="
                "lambda rows: {**collate(rows).as_dict(), 'ids': rows.ids}",
            )
        return self._ids

    def _require_origin(self) -> BatchOrigin:
        self.require_ids()
        if self._source is not None:
            raise OptionError(
                "the rows of this batch are of several sets, whose labels may differ",
                given=f"rows of {', '.join(dict.fromkeys(self._source.tolist()))}",
                remedy="ask the samples of a set, as in "
                "samples.to_xarray(batch.ids[batch.source == name]), or "
                "samples.plot(batch.ids[batch.source == name]) for a picture",
            )
        if self._origin is None:
            raise OptionError(
                "the samples of this batch are not known",
                given="a batch that was made from arrays",
                remedy="call samples.to_xarray(batch.ids), or make it with batch.with_arrays(...)",
            )
        return self._origin

    def plot(
        self,
        row: int | None = None,
        *,
        rows: Sequence[int] | None = None,
        channel: str | Sequence[str] | None = None,
    ) -> Picture:
        """Draw one row of the batch, or several: maps, lines and single values side by side.

        Parameters
        ----------
        row : int, default 0
            The row to draw. Negative rows count from the end.
        rows : sequence of int, optional
            Several rows, below each other, in place of ``row``.
        channel : str or sequence of str, optional
            As for :meth:`Samples.plot`, as are the result and the other errors.

        Returns
        -------
        matplotlib.figure.Figure
            As :meth:`Samples.plot` draws it.

        Raises
        ------
        OptionError
            As :meth:`to_xarray` does. If both ``row`` and ``rows`` are given, or no row.
        SampleIndexError
            If the batch has no such row.

        Examples
        --------
        >>> import xarray as xr, xloader
        >>> series = xr.Dataset({"sst": ("time", np.arange(6.0))}, {"time": np.arange(6) * 10})
        >>> batch = next(iter(series.xloader.window(time=2).loader(output="numpy")))
        >>> len(batch.plot(rows=[0, 2]).axes)
        2
        """
        from xloader.show.sample_panels import draw_samples, plotted_rows

        recipe = self._require_origin().recipe
        chosen = plotted_rows(self.num_samples, row, rows)
        frame = self.to_xarray()
        frames = {
            f"sample {self.ids[number]} (row {number})": show_labels(frame.isel({SAMPLE: number}))
            for number in chosen
        }
        return draw_samples(frames, recipe, channel)

    def with_arrays(self, arrays: Iterable[Any]) -> Batch:
        """Replace the arrays of the fields. Names, ids, flags and labels stay the same.

        Parameters
        ----------
        arrays : iterable of array
            One for each field, each of shape ``(n, ...)``.

        Returns
        -------
        Batch
            A new batch.

        Raises
        ------
        OptionError
            If the numbers of arrays and names differ.
        """
        labels = (self._fields, self._ids, self._is_padding, self._origin, self._source)
        return Batch.__new__(type(self), arrays, *labels)

    def to(self, device: Any, non_blocking: bool = False) -> Batch:
        """Copy the tensors to a device. Ids and flags stay where they are.

        Parameters
        ----------
        device : torch.device or str
            The device to copy to.
        non_blocking : bool
            Whether to return before the copies are done, as in :meth:`torch.Tensor.to`.

        Returns
        -------
        Batch
            A new batch.

        Raises
        ------
        UnsupportedDataError
            If a field is not a tensor.
        """
        for name, array in zip(self._fields, self, strict=True):
            if not hasattr(array, "to"):
                raise UnsupportedDataError(
                    f"the field {name!r} cannot be moved to a device",
                    given=type(array).__name__,
                    remedy='make the loader with output="torch"; with JAX, call '
                    "jax.device_put(batch.as_dict(), device)",
                )
        return self.with_arrays([array.to(device, non_blocking=non_blocking) for array in self])

    def pin_memory(self) -> Batch:
        """Copy the tensors to pinned memory, from which copies to a GPU are faster.

        PyTorch's ``DataLoader(pin_memory=True)`` calls this method. Everything else stays as it
        is, as in PyTorch: ids, flags, and fields that are arrays.

        Returns
        -------
        Batch
            A new batch.

        Raises
        ------
        RuntimeError
            From PyTorch, if this machine has no accelerator to pin memory for.
        """
        return self.with_arrays(a.pin_memory() if hasattr(a, "pin_memory") else a for a in self)


_KINDS: dict[tuple[str, ...], Any] = {}


def _kind_of(names: tuple[str, ...]) -> type[Batch]:
    """The class of batches of these fields, by which ``type(batch)(arrays)`` knows their names."""
    if names not in _KINDS:
        members = {"_fields": names, "__new__": _rebuilt, "__module__": __name__}
        # Of two threads that make one, both take the first.
        _KINDS.setdefault(names, type("Batch", (Batch,), members))
    return cast(type[Batch], _KINDS[names])


def _rebuilt(node: type[Batch], *given: Any) -> Batch:
    """A batch of arrays alone, given together or, as a named tuple takes them, one by one."""
    are_together = len(given) == 1 and isinstance(given[0], Iterable)
    is_field = are_together and hasattr(given[0], "shape")
    return Batch.__new__(node, given[0] if are_together and not is_field else given)


def _look(array: Any) -> str:
    """Dtype and shape of an array or tensor as text; for anything else, its type."""
    if not hasattr(array, "shape"):
        return type(array).__name__
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


def _in_torch(pytree: Any, node: type[Any]) -> None:
    keyed = partial(_keyed, pytree.GetAttrKey)
    pytree.register_pytree_node(
        node, _parts, lambda arrays, _: node(arrays), flatten_with_keys_fn=keyed
    )


def _in_jax(tree_util: Any, node: type[Any]) -> None:
    keyed = partial(_keyed, tree_util.GetAttrKey)
    tree_util.register_pytree_with_keys(node, keyed, lambda _, arrays: node(arrays), _parts)


def _in_optree(optree: Any, node: type[Any]) -> None:
    # Keras and PyTorch look up types in namespaces of their own, and then in the global one.
    everywhere = getattr(optree.registry, "__GLOBAL_NAMESPACE", "keras")
    optree.register_pytree_node(node, _parts, lambda _, arrays: node(arrays), namespace=everywhere)


def _parts(batch: Any) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    return tuple(batch), batch.names


def _keyed(key: Callable[[str], Any], batch: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """As `_parts`, each array with a key of its name, by which errors of a library call it."""
    pairs = [(key(name), array) for name, array in zip(batch.names, batch, strict=True)]
    return pairs, batch.names


_LIBRARIES = {"torch.utils._pytree": _in_torch, "jax.tree_util": _in_jax, "optree": _in_optree}
_entries: dict[tuple[type, str], object] = {}
"""Who has entered a class of batches in a library, or is about to."""


def register(node: type[Any]) -> None:
    """Let the libraries that are loaded by now walk through batches of a kind."""
    for library, enter in _LIBRARIES.items():
        if library in sys.modules and (node, library) not in _entries:
            module, entry = sys.modules[library], object()
            # A library that another thread is importing takes the next batch.
            is_ready = hasattr(module, "register_pytree_node")
            # Of two threads, one enters it. No lock, as a fork might copy it while it is held.
            if is_ready and _entries.setdefault((node, library), entry) is entry:
                enter(module, node)
