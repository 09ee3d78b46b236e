"""`open_classes`: a folder for each class, whose files are the samples."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Self

from numpy.typing import DTypeLike

from xloader.core.point_table import LabelColumn, PointTable
from xloader.core.retry_policy import RetryPolicy
from xloader.core.subset import Subset
from xloader.core.windows import Windows
from xloader.recipe.recipe import Field, Recipe
from xloader.samples.samples import Samples
from xloader.sources.arrays.catalog import DEFAULT_DTYPE
from xloader.sources.open.class_source import (
    FILE,
    LABEL_FIELD,
    ClassSource,
    list_classes,
    open_class_source,
)


def open_classes(
    root: str | os.PathLike[str],
    *,
    variables: Iterable[str] | str | None = None,
    extensions: Iterable[str] | str | None = None,
    dtype: DTypeLike | None = DEFAULT_DTYPE,
    read_timeout: float = 300.0,
    max_retries: int = 4,
    **open_kwargs: Any,
) -> ClassSamples:
    """Open a folder of folders, one for each class; each file is one sample.

    Files are listed as by ``torchvision.datasets.ImageFolder``: classes are the names of the
    folders, sorted; hidden files are passed over. Only the first file is opened. A file of another
    shape or dtype is an error at its batch, or is skipped with ``on_error="skip"``.

    Parameters
    ----------
    root : path
        The folder.
    variables : iterable of str or str, optional
        The data variables to offer; by default all of the first file that hold numbers.
    extensions : iterable of str, optional
        Ends of the names of files that are samples; by default those of netCDF, HDF5, GRIB, GeoTIFF
        (with rioxarray) and Zarr, and any folder that is a Zarr group.
    dtype, read_timeout, max_retries, **open_kwargs
        As for :func:`xloader.open`.

    Returns
    -------
    ClassSamples
        One sample for each file, with its variables as fields, and the integer field ``label``.

    Raises
    ------
    SourceNotFoundError
        If there is no such folder, no folder in it, or a class without files.
    UnknownNameError, UnsupportedDataError, SourceAccessError, MissingDependencyError
        As for :func:`xloader.open`, for the first file.
    OptionError
        If an option is out of range, or files use the names ``file``, ``class``, ``label``,
        ``file_label`` or ``class_label``.

    Examples
    --------
    >>> import tempfile, numpy as np, xarray as xr
    >>> from pathlib import Path
    >>> root = Path(tempfile.mkdtemp())
    >>> for number, name in enumerate(["clear", "storm", "storm"]):
    ...     sky = xr.Dataset({"t": (("y", "x"), np.full((2, 3), number, "f4"))})
    ...     (root / name).mkdir(exist_ok=True)
    ...     _ = sky.to_netcdf(root / name / f"{number}.nc")
    >>> samples = open_classes(root).inputs("t")
    >>> samples.classes, samples.class_to_idx, samples.shapes
    (('clear', 'storm'), {'clear': 0, 'storm': 1}, {'inputs': (1, 2, 3), 'label': ()})
    >>> inputs, label = samples[2]
    >>> inputs.mean(), int(label)
    (np.float32(2.0), 1)
    """
    retry_policy = RetryPolicy(read_timeout, max_retries)
    files = list_classes(root, extensions)
    names = variables if variables is None or isinstance(variables, str) else tuple(variables)
    source = open_class_source(files, names, dtype, open_kwargs)
    count = len(files)
    windows = Windows((FILE,), (count,), (1,), (1,), (1,))
    label = LabelColumn(LABEL_FIELD, files.codes, files.classes)
    notes = (f"left out: {files.left_out}",) if files.left_out else ()
    subset = Subset(count, None, notes=notes, points=PointTable((label,), count))
    recipe = Recipe(source, windows=windows, subset=subset, retry_policy=retry_policy)
    return ClassSamples(replace(recipe, fields=own_fields(recipe)))


class ClassSamples(Samples):
    """Samples that are the files of classes, made by :func:`xloader.open_classes`.

    They are :class:`xloader.Samples` with windows of one file. A field has the dimensions that its
    variables have in a file.
    """

    @property
    def classes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the classes, in the order of their numbers in the field ``label``."""
        source = self.recipe.source
        assert isinstance(source, ClassSource)
        return source.files.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class in the field ``label``."""
        return {name: number for number, name in enumerate(self.classes)}

    def field(self, name: str, /, *variables: Any, **offsets: Any) -> Self:
        """Add a named array to each sample, as :meth:`xloader.Samples.field` does.

        The first field that is added replaces those of single variables, which samples have until
        then.
        """
        kept = self
        if self.recipe.fields == own_fields(self.recipe):
            kept = self._but(fields=())
        return Samples.field(kept, name, *variables, **{FILE: 0, **offsets})


def own_fields(recipe: Recipe) -> tuple[Field, ...]:
    """A field for each variable, with the dimensions that it has in a file."""
    return tuple(
        Field(name, (name,), ((FILE, 0),), has_channels=False) for name in recipe.variables
    )
