"""`interleave`: batches with rows of several sets of samples, in exact proportions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational, Real
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.core.option_checks import MOST, check_whole
from xloader.core.options import LoaderKeywords, LoaderOptions, lists_options, make_options
from xloader.errors import OptionError
from xloader.loader.interleaved.sample_sets import SampleSet, SampleSets, num_samples_of
from xloader.order.quota_pattern import QuotaPattern
from xloader.samples.samples import Samples

if TYPE_CHECKING:
    from xloader.loader.loader import Loader
    from xloader.planning.explain import Explanation

_MOST_DENOMINATOR = 1_000_000


@dataclass(frozen=True)
class Interleaved:
    """Several sets of samples with the same fields, whose rows share the batches of an epoch.

    :func:`xloader.interleave` makes it.

    Parameters
    ----------
    sets : SampleSets
        The sets.
    """

    sets: SampleSets

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sets, in the order in which a batch has them."""
        return self.sets.names

    @property
    def weights(self) -> dict[str, Fraction]:
        """Proportion of the rows that are of each set. They sum to 1."""
        return self.sets.weights

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, after all transforms."""
        return tuple(out.name for out in self.sets.outputs)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of one sample of each field, after all transforms."""
        return {out.name: out.shape for out in self.sets.outputs}

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        """Dtype of each field, after all transforms."""
        return {out.name: out.dtype for out in self.sets.outputs}

    def __len__(self) -> int:
        """Number of rows of an epoch on one rank, with ``drop_last=False``."""
        if self.sets.num_samples is not None:
            return self.sets.num_samples
        return self.sets.pattern.num_rows(self.sets.sizes)

    @lists_options
    def loader(self, **options: Unpack[LoaderKeywords]) -> Loader:
        """Plan epochs of batches with rows of all sets. Nothing is read yet.

        Parameters
        ----------
        **options
            As for :meth:`Samples.loader`. ``batch_size`` is that of the batches with rows of all
            sets. ``memory`` is divided among the sets: by weight, but each has at least what its
            smallest plan needs, and none more than what holds all its chunks. ``threads`` and
            ``processes`` are those of each set; by default the cores are divided by weight.
            A ``transform`` and ``out`` of :class:`OnDevice` are not possible.

        Returns
        -------
        Loader
            An iterable of :class:`Batch`. The rows of a batch are grouped by set.

        Raises
        ------
        MemoryBudgetError
            If the memory is too small for the sets together.
        EmptySamplesError
            If a set has no row in an epoch.
        OptionError
            If an option is unknown, outside its range, or not possible here; if lanes do not divide
            the global batch, or ranks the lanes.
        """
        from xloader.loader.interleaved.interleaved_loader import InterleavedLoader
        from xloader.samples import loader_verbs

        checked = make_options(**options)
        _refuse_options(checked)
        hand_over, join = loader_verbs.composers(checked, self.dtypes)
        make = loader_verbs.make_loader if join is not None else loader_verbs.make_array_loader
        return InterleavedLoader(self.sets, checked, make, hand_over, join)

    @lists_options
    def explain(self, **options: Unpack[LoaderKeywords]) -> Explanation:
        """Predict what an epoch costs in reads and memory. No value is read.

        Parameters
        ----------
        **options
            As for :meth:`loader`.

        Returns
        -------
        Explanation
            Sums, and a part for each set.
        """
        loader_options: LoaderKeywords = {"output": "numpy", **options}
        with self.loader(**loader_options) as loader:
            return loader.explain()

    def __getattr__(self, name: str) -> Any:
        if hasattr(Samples, name) and not name.startswith("_"):
            raise AttributeError(
                f"several sets together have no {name!r}: call it on the samples of each set, "
                "before xloader.interleave"
            )
        raise AttributeError(f"'Interleaved' object has no attribute {name!r}")

    def __repr__(self) -> str:
        from xloader.show.cards import facts_text

        rows = [*self._set_rows(), *self._field_rows()]
        return facts_text(f"xloader.Interleaved, {self._length()}", rows)

    def _repr_html_(self) -> str:
        from xloader.show.cards import Card, CardSection, Facts
        from xloader.show.sample_cards import draw_weights, sample_parts

        sections = [
            CardSection("sets", [Facts(self._set_rows()), draw_weights(self.sets.weights)]),
            CardSection("fields", [Facts(self._field_rows())]),
            *(
                CardSection(s.name, sample_parts(s.recipe), is_open=False, summary="samples")
                for s in self.sets.sets
            ),
        ]
        return Card("xloader.Interleaved", self._length(), sections).to_html()

    def _length(self) -> str:
        try:
            return f"{show_count(len(self), 'row')} an epoch"
        except OptionError:
            # Users print samples to find a fault, so printing must not fail because of it.
            return "weights with too many digits"

    def _set_rows(self) -> list[tuple[str, str]]:
        rows = []
        for member in self.sets.sets:
            size = num_samples_of(member.recipe)
            text = f"{float(member.weight):.4g} of the rows, {show_count(size, 'sample')}"
            rows.append((member.name, text))
        return rows

    def _field_rows(self) -> list[tuple[str, str]]:
        return [
            (out.name, f"{out.shape} {out.dtype}, {show_nbytes(out.nbytes)} a sample")
            for out in self.sets.outputs
        ]


def interleave(
    sets: Mapping[str, tuple[Samples, float | Fraction]], *, num_samples: int | None = None
) -> Interleaved:
    """Mix several sets of samples in exact proportions.

    After any number ``k`` of rows, a set of proportion ``w`` has given ``floor(w * k)`` or ``ceil(w
    * k)`` of them. Each set is read by its own plan.

    Parameters
    ----------
    sets : mapping of str to (Samples, float)
        The sets by name, each with its weight, above 0. Only ratios matter. Decimal numbers are
        taken as written: 0.1 is a tenth.
    num_samples : int, optional
        Rows of an epoch, on all ranks. By default the most with which no sample comes twice. With
        more, the samples of a set that is too short come equally often, give or take one.

    Returns
    -------
    Interleaved
        The sets together. Its ``loader(...)`` and ``explain(...)`` take the options of
        :meth:`Samples.loader`; ``batch.source`` names the set of each row.

    Raises
    ------
    OptionError
        If fields differ in names, shapes, dtypes or classes; if a weight or ``num_samples`` is no
        number above 0, a set has no windows, or there is no set.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xloader
    >>> ds = xr.Dataset({"t2m": (("time", "x"), np.arange(40.0).reshape(10, 4))})
    >>> era5, cmip = (xloader.open(ds + shift).window(time=1) for shift in (0, 100))
    >>> both = xloader.interleave({"era5": (era5, 0.7), "cmip": (cmip, 0.3)})
    >>> both
    <xloader.Interleaved, 14 rows an epoch>
        era5  0.7 of the rows, 10 samples
        cmip  0.3 of the rows, 10 samples
        t2m  (1, 4) float64, 32 B a sample
    >>> with both.loader(batch_size=10, output="numpy") as loader:
    ...     batch = next(iter(loader))
    >>> batch.source.tolist()
    ['era5', 'era5', 'era5', 'era5', 'era5', 'era5', 'era5', 'cmip', 'cmip', 'cmip']
    """
    named = _checked_sets(sets)
    if num_samples is not None:
        num_samples = check_whole("num_samples", num_samples, 1, MOST)
    _require_alike({name: samples for name, (samples, _) in named.items()})
    total = sum(weight for _, weight in named.values())
    weights = [weight / total for _, weight in named.values()]
    chosen = tuple(
        SampleSet(name, samples.recipe, weight)
        for (name, (samples, _)), weight in zip(named.items(), weights, strict=True)
    )
    first = next(iter(named.values()))[0]
    return Interleaved(SampleSets(chosen, first._outputs, num_samples, QuotaPattern.of(weights)))


def _checked_sets(sets: Any) -> dict[str, tuple[Samples, Fraction]]:
    allowed = 'a mapping such as {"era5": (samples, 0.7), "cmip": (others, 0.3)}'
    if not isinstance(sets, Mapping) or not sets:
        raise OptionError(
            "interleave takes sets of samples by name",
            given="no set" if isinstance(sets, Mapping) else type(sets).__name__,
            allowed=allowed,
        )
    checked = {}
    for name, value in sets.items():
        if not isinstance(name, str) or not name:
            raise OptionError("the name of a set is not a text", given=repr(name), allowed=allowed)
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise OptionError(
                f"the set {name!r} is not a pair of samples and a weight",
                given=type(value).__name__,
                remedy=f'pass {{"{name}": (samples, weight)}}',
            )
        samples, weight = value
        if not isinstance(samples, Samples):
            raise OptionError(
                f"the set {name!r} holds no samples",
                given=type(samples).__name__,
                allowed="xloader.Samples with windows, as from xloader.open(...).window(...)",
            )
        samples.recipe.require_windows()
        checked[name] = samples, _exact_weight(name, weight)
    return checked


def _exact_weight(name: str, weight: Any) -> Fraction:
    """The fraction that a weight stands for."""
    is_number = isinstance(weight, Real) and not isinstance(weight, bool | np.bool_)
    if not is_number or not math.isfinite(weight) or weight <= 0:
        raise OptionError(
            f"the weight of the set {name!r} is not a number above 0",
            given=repr(weight),
            remedy="pass a finite number, such as 0.7 or Fraction(2, 3), or leave the set out",
        )
    if isinstance(weight, Rational):
        return Fraction(int(weight.numerator), int(weight.denominator))
    # As text, 0.7 of 32 bits is 0.7 and not 0.699999988.
    number = float(str(weight))
    simple = Fraction(number).limit_denominator(_MOST_DENOMINATOR)
    return simple if float(simple) == number else Fraction(str(number))


def _require_alike(sets: Mapping[str, Samples]) -> None:
    """Refuse sets whose fields differ from those of the first set."""
    (first_name, first), *later = sets.items()
    for name, second in later:
        if set(first.fields) != set(second.fields):
            raise OptionError(
                f"the sets {first_name!r} and {name!r} have different fields",
                given=f"{first_name!r} with {', '.join(first.fields)}; "
                f"{name!r} with {', '.join(second.fields)}",
                remedy="name the fields of each set, with inputs, targets or field",
            )
        for field in first.fields:
            for what, look in _LOOKS.items():
                expected, given = look(first, field), look(second, field)
                # Dimensions may have other names, such as lat and latitude.
                is_shape = what == "shape" and first.shapes[field] == second.shapes[field]
                if expected != given and not is_shape:
                    raise OptionError(
                        f"the field {field!r} has another {what} in the set {name!r} than in "
                        f"{first_name!r}",
                        given=f"{first_name!r} with {expected}; {name!r} with {given}",
                        remedy=_REMEDIES[what].format(expected),
                    )


def _shape_of(samples: Samples, field: str) -> str:
    out = next(out for out in samples._outputs if out.name == field)
    dims = ", ".join(f"{dim}: {size}" for dim, size in zip(out.dims, out.shape, strict=True))
    return f"({dims})"


def _classes_of(samples: Samples, field: str) -> tuple[str, ...] | None:
    # Not Samples.classes, which is something else for samples of class folders.
    return next((c.classes for c in samples.recipe.label_columns if c.name == field), None)


_LOOKS: dict[str, Callable[[Samples, str], Any]] = {
    "shape": _shape_of,
    "dtype": lambda samples, field: samples.dtypes[field],
    "classes": _classes_of,
}
_REMEDIES = {
    "shape": "choose the same sizes, with sel, window, inputs and targets, or change one "
    "with .map(...)",
    "dtype": 'convert one, for example with .map(lambda ds: ds.astype("{}"))',
    "classes": "give the columns of both tables the same categories, with "
    "pandas.Categorical(values, categories=[...]), or both roots the same class folders",
}


def _refuse_options(options: LoaderOptions) -> None:
    if options.steps is not None:
        raise OptionError(
            "a loader of several sets has no steps",
            given=f"steps={options.steps}",
            remedy="pass num_samples= to xloader.interleave, the rows of an epoch",
        )
    remedies = {
        "transform": "change batches in the training loop, or samples with .map(...) of a set",
        "out": "copy each batch into tensors of your own, in the training loop",
    }
    for name, remedy in remedies.items():
        value = getattr(options.on_device, name)
        if value is not None:
            raise OptionError(
                f"a loader of several sets has no {name} of OnDevice",
                given=f"{name}={type(value).__name__}",
                remedy=remedy,
            )
