"""Figures of epochs as text, tables and JSON, with the words that explain them in cards.

The reads of each variable, as planned or as measured, sum to those of an epoch exactly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from xloader.core.footprint import Group
from xloader.core.messages import show_count
from xloader.core.nbytes import show_nbytes
from xloader.errors import OptionError
from xloader.recipe.recipe import find
from xloader.show.cards import Card, CardPart, CardSection, CardTable, Facts
from xloader.show.json_values import flat_numbers, to_json_value, values_by_name


@dataclass(frozen=True)
class VariableFigures:
    """The reads of one variable in an epoch, of the same ranks as the figures that hold it.

    Attributes
    ----------
    num_chunks : int
        Distinct chunks that the epoch needs, as predicted; 0 for a variable that is computed.
    num_reads : int
        Chunks read and decoded.
    read_nbytes : int
        Decoded bytes of these chunks.
    read_amplification : float
        ``num_reads`` divided by ``num_chunks``; 1.00 is each once, 0 if none is needed.
    """

    num_chunks: int
    num_reads: int
    read_nbytes: int
    read_amplification: float


class GroupReads(NamedTuple):
    """The reads of one group's blocks, which are those of each of its variables."""

    num_needed: int
    num_loads: int
    num_elements: int


def count_reads(groups: Sequence[Group], reads: Sequence[GroupReads]) -> dict[str, Any]:
    """The figures of an epoch that follow from the reads of each group."""
    variables = {}
    for group, group_reads in zip(groups, reads, strict=True):
        for demand in group.demands:
            variables[demand.variable] = variable_figures(
                group_reads.num_needed * demand.num_reads_per_block,
                group_reads.num_loads * demand.num_reads_per_block,
                group_reads.num_elements * demand.unit_read_nbytes,
            )
    return sum_variables(variables)


def variable_figures(num_chunks: int, num_reads: int, read_nbytes: int) -> VariableFigures:
    """The figures of a variable, with its read amplification."""
    return VariableFigures(num_chunks, num_reads, read_nbytes, num_reads / max(num_chunks, 1))


def sum_variables(variables: Mapping[str, VariableFigures]) -> dict[str, Any]:
    """The figures of an epoch that are sums over its variables, and these; see `count_reads`."""
    num_reads = sum(figures.num_reads for figures in variables.values())
    num_chunks = sum(figures.num_chunks for figures in variables.values())
    return {
        "num_reads": num_reads,
        "read_nbytes": sum(figures.read_nbytes for figures in variables.values()),
        "read_amplification": num_reads / max(num_chunks, 1),
        "variables": variables,
    }


def scaled_reads(reads: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Estimate the figures of a long order from those of its first part; see `count_reads`."""
    if scale == 1:
        return dict(reads)
    variables = {
        name: replace(
            figures,
            num_reads=round(scale * figures.num_reads),
            read_nbytes=round(scale * figures.read_nbytes),
        )
        for name, figures in reads["variables"].items()
    }
    # Reads a chunk are those of the first part: how many chunks the rest needs is not known.
    return {**sum_variables(variables), "read_amplification": reads["read_amplification"]}


def measured_variables(
    groups: Sequence[Group],
    expected: Mapping[str, VariableFigures],
    num_reads: Mapping[str, int],
    group_nbytes: Mapping[int, int],
) -> dict[str, VariableFigures]:
    """The figures of each variable as an engine has counted them."""
    measured = {}
    for index, group in enumerate(groups):
        unit = group.unit_read_nbytes
        # The blocks of a group have the same elements of each variable, so this divides evenly.
        num_elements = group_nbytes.get(index, 0) // unit if unit else 0
        for demand in group.demands:
            name = demand.variable
            num_chunks = expected[name].num_chunks if name in expected else 0
            nbytes = num_elements * demand.unit_read_nbytes
            measured[name] = variable_figures(num_chunks, num_reads.get(name, 0), nbytes)
    return measured


def num_needed(groups: Sequence[Group], reads: Iterable[GroupReads]) -> int:
    """Number of distinct (variable, chunk) pairs that are needed."""
    return sum(
        group_reads.num_needed * group.num_reads_per_block
        for group, group_reads in zip(groups, reads, strict=True)
    )


T = TypeVar("T")

_REPEATED: Final = "reads divided by the chunks that are needed; 1 reads each of them once"
_PEAK: Final = "the most bytes of batches, chunks on their way and decoded chunks at a time"
_REGIONS: Final = (
    "distinct places of the data, some neighbouring chunks each, among the samples of a batch, on "
    "average: the more, the more a batch differs from neighbouring samples"
)
_FULL_SHUFFLE: Final = (
    "a shuffle in which every order of the samples is equally likely, whatever it costs to read"
)

FIGURE_WORDS: Final[Mapping[str, str]] = {
    "padding": "rows that repeat others, so that all ranks have equally many; see batch.is_padding",
    "reads": "chunks that are fetched and decoded, each variable's own",
    "amplification": _REPEATED,
    "reads per chunk": _REPEATED,
    "max_amplification": "the most reads per chunk that the plan may need",
    "mixing": _REGIONS,
    "places per batch": _REGIONS,
    "in a full shuffle": _FULL_SHUFFLE,
    "of a full shuffle": f"mixing, as a share of that of a full shuffle: {_FULL_SHUFFLE}",
    "memory": "bytes for batches, chunks on their way and decoded chunks at a time",
    "peak memory": _PEAK,
    "plan": "tile: elements that are ordered as one unit; spread: how many later tiles come in "
    "while a tile hands out its samples; visits: how often the plan comes by each tile; lanes: "
    "parts of the order that ranks own",
    "read": "the way in which the chunks of these variables are fetched and decoded",
    "gather": "the way in which rows are copied from decoded chunks into batches",
    "transfer": "what crosses to the device with each batch",
    "shared": "chunks that several ranks or workers need, and that each of them reads",
    "delivered": "bytes of the batches that the training loop took",
    "decoded": "bytes of the chunks that were read, after decoding",
    "waited": "time in which the training loop waited for a batch",
    "threads": "what the loader's threads did; the rest of their time they were idle",
    "cores": "the average number of cores that computed for this process",
    "waits": "time in which the loader's threads had work, but no lock or no core",
    "ahead": "chunks that the store was asked for before there was memory to decode them",
    "headroom": "the loader's speed if the training loop took no time",
    "bottleneck": "what limits the speed, and what would help",
    "retries": "requests that repeat a failed one",
    "missing": "chunks that the store does not hold",
    "skipped": "samples that other rows of their batches replaced",
    "NaN": "missing values in the delivered batches",
    "front": "no other plan is as good in reads, mixing and memory, and better in one of them",
}
"""By heading, what is meant."""


TitledTable = tuple[str, list[list[str]]]
"""A title, and rows of cells. The first row holds the headings."""

_MOST_VARIABLES = 12
"""Rows of a table of variables. The others, which have fewer bytes, are only counted."""


def variables_table(variables: Mapping[str, VariableFigures]) -> list[TitledTable]:
    """The reads of each variable; nothing for a single one."""

    def cells(name: str) -> list[str]:
        figures = variables[name]
        return [
            f"{figures.num_reads:,}",
            show_nbytes(figures.read_nbytes),
            f"{figures.read_amplification:.3f}",
        ]

    return list_variables(variables, ["variable", "reads", "decoded", "reads per chunk"], cells)


def list_variables(
    variables: Mapping[str, VariableFigures], heads: list[str], cells: Callable[[str], list[str]]
) -> list[TitledTable]:
    """A table with a row for each variable; nothing for a single one."""
    if len(variables) < 2:
        return []
    names = list(variables)
    if len(names) > _MOST_VARIABLES:
        names.sort(key=lambda name: -variables[name].read_nbytes)
    rows = [heads, *([name, *cells(name)] for name in names[:_MOST_VARIABLES])]
    if (more := len(names) - _MOST_VARIABLES) > 0:
        rows.append([f"and {more:,} more", *("" for _ in heads[1:])])
    return [("variables", rows)]


@dataclass(frozen=True)
class FigureTable:
    """Base of frozen dataclasses whose values are shown as a table, as text and as HTML.

    `_derived`: names of properties that are shown beside the fields. `_hints`: explanations of
    headings of the rows and sections.
    """

    _derived: ClassVar[tuple[str, ...]] = ()
    _hints: ClassVar[Mapping[str, str]] = {}

    def to_dict(self) -> dict[str, Any]:
        """The figures by name, in types that JSON can hold. Derived figures are included."""
        return {name: to_json_value(value) for name, value in self._figures().items()}

    def to_json(self, indent: int | None = 2) -> str:
        """The figures as JSON, an object with the keys of `to_dict`.

        Parameters
        ----------
        indent : int, optional
            Spaces by which nested parts are indented; None for one line.
        """
        return json.dumps(self.to_dict(), indent=indent)

    def metrics(self, prefix: str = "xloader", separator: str = "/") -> dict[str, float]:
        """The numbers by flat names, for TensorBoard, MLflow and Prometheus.

        Parameters
        ----------
        prefix : str, default "xloader"
            Begins each name.
        separator : str, default "/"
            Stands between the parts of a name: ``"_"`` for Prometheus.

        Returns
        -------
        dict of str to float
            Finite numbers only, such as ``"xloader/read_amplification"`` and
            ``"xloader/variables/t2m/num_reads"``.
        """
        return flat_numbers(self._figures(), prefix, separator)

    def _figures(self) -> dict[str, Any]:
        return values_by_name(self, *self._derived)

    def _sections(self) -> list[TitledTable]:
        """Tables below the rows: a title, and rows of cells with a row of headings first."""
        return []

    def _rows(self) -> list[tuple[str, str]]:
        """The rows of the table: a heading and a text each."""
        raise NotImplementedError

    def _details(self) -> list[tuple[str, str]]:
        """Rows on the inside of a plan, which come last."""
        return []

    def _title(self) -> str:
        return type(self).__name__

    def _drawings(self) -> list[CardPart]:
        return []

    def _card_of(self, *parts: CardPart) -> Card:
        kind, _, rest = self._title().partition(": ")
        return Card(kind, rest, parts)

    def _tables(self) -> list[CardPart]:
        tables: list[CardPart] = []
        for title, rows in self._sections():
            name, _, rest = title.partition(": ")
            table = CardTable(rows[0], rows[1:], hints=self._hints)
            tables.append(CardSection(name, [table], summary=rest))
        return tables

    def _card_parts(self) -> list[CardPart]:
        """Rows, drawings and tables; of several sets, each of them alone as well."""
        sets: Mapping[str, FigureTable] = getattr(self, "sets", {})
        parts = [Facts(self._rows(), self._hints), *self._drawings(), *self._tables()]
        if details := self._details():
            parts.append(CardSection("details", [Facts(details, self._hints)], is_open=False))
        for name, figures in sets.items():
            alone = figures._card_parts()
            parts.append(CardSection(name, alone, is_open=False, summary="this set alone"))
        return parts

    def __str__(self) -> str:
        return self._card_of(Facts([*self._rows(), *self._details()]), *self._tables()).to_text()

    def _repr_html_(self) -> str:
        return self._card_of(*self._card_parts()).to_html()


@dataclass(frozen=True)
class SetShare:
    """The part of one of several sets of samples in an epoch, on all ranks."""

    weight: Fraction
    num_samples: int
    num_left_out: int
    memory_nbytes: int

    def in_words(self) -> str:
        """The share as a row of a table shows it."""
        text = f"{float(self.weight):.4g} of the rows, {self.num_samples:,} per epoch"
        if self.num_left_out:
            text += f", {show_count(self.num_left_out, 'sample')} left out of each"
        return f"{text}; {show_nbytes(self.memory_nbytes)} of memory"


@dataclass(frozen=True, kw_only=True)
class Figures(FigureTable):
    """The figures that an explanation and a report have in common: of one rank and one epoch.

    Attributes
    ----------
    num_samples : int
        Samples delivered, without padding.
    num_padding : int
        Rows that repeat another, so that all ranks have equally many: ``batch.is_padding``.
    num_steps : int
        Batches of each rank.
    num_reads : int
        (variable, chunk) pairs read and decoded.
    read_nbytes : int
        Decoded bytes of these chunks.
    read_amplification : float
        Reads per (variable, chunk) pair that is needed; 1.00 is each once.
    peak_nbytes : int
        The most bytes in use at a time: an upper bound, at most ``memory``. In a report it is
        measured.
    mixing, full_mixing : float
        Mean number of distinct places in a global batch, and in a full shuffle.
    num_dropped_windows, dropped_windows : int, dict of str to int
        Windows left out, and the same by reason: ``"gap"``, ``"end"`` (they would leave the array).
    is_exact : bool
        Whether the counts are exact.
    tile : dict of str to int
        Elements of the longest tile, per windowed dimension.
    run, streams, spread, lanes, visits : int
        The other numbers of the plan's order.
    variables : dict of str to VariableFigures
        ``num_reads`` and ``read_nbytes`` of each variable; of several sets, such as ``"era5/t2m"``.
    sets : dict of str to Explanation or Report
        Of several sets of samples, the figures of each.
    shares : dict of str to SetShare
        The part of each set in an epoch.
    """

    _hints = FIGURE_WORDS

    num_samples: int
    num_padding: int = 0
    num_steps: int
    num_reads: int
    read_nbytes: int
    read_amplification: float
    peak_nbytes: int
    mixing: float
    full_mixing: float
    num_dropped_windows: int
    dropped_windows: Mapping[str, int]
    is_exact: bool
    tile: Mapping[str, int] = field(default_factory=dict)
    run: int = 1
    streams: int = 1
    spread: int = 0
    lanes: int = 1
    visits: int = 1
    variables: Mapping[str, VariableFigures]
    sets: Mapping[str, Any] = field(default_factory=dict)
    shares: Mapping[str, SetShare] = field(default_factory=dict)

    def _figures(self) -> dict[str, Any]:
        every = super()._figures()
        return {name: v for name, v in every.items() if v or name not in ("sets", "shares")}

    def _rows(self) -> list[tuple[str, str]]:
        dropped = f", {show_count(self.num_dropped_windows, 'window')} dropped"
        dropped *= bool(self.num_dropped_windows)
        if num_across := self.dropped_windows.get("gap", 0):
            dropped += f" ({num_across:,} across gaps)"
        kept = "" if self.num_reads else ": all needed chunks are already in memory"
        chunks = show_count(self.num_reads, "chunk")
        padding = f"{show_count(self.num_padding, 'row')} in the last batch"
        mixing = f"{self.mixing:.1f} places per batch; a full shuffle has {self.full_mixing:.1f}"
        return [
            ("samples", f"{self.num_samples:,} in {show_count(self.num_steps, 'batch')}{dropped}"),
            *[("padding", padding)] * bool(self.num_padding),
            ("reads", f"{chunks}, {show_nbytes(self.read_nbytes)} decoded{kept}"),
            ("amplification", f"{self.read_amplification:.3f} reads per chunk"),
            ("mixing", mixing),
            ("memory", f"{show_nbytes(self.peak_nbytes)} at most"),
            *((name, share.in_words()) for name, share in self.shares.items()),
        ]

    def _details(self) -> list[tuple[str, str]]:
        if self.shares:
            return []
        tile = " x ".join(f"{dim} {size}" for dim, size in self.tile.items())
        runs = f"runs of {self.run} tiles in {show_count(self.streams, 'stream')}, "
        runs *= self.run > 1
        visits = f", {self.visits} visits of each tile" * (self.visits > 1)
        return [("plan", f"tile {tile}; {runs}spread {self.spread}{visits}, lanes {self.lanes}")]


def find_set(sets: Mapping[str, T], name: str | None, call: str) -> T:
    """One of several sets by its name, or the only one."""
    names = tuple(sets)
    if name is None and len(names) != 1:
        raise OptionError(
            "each set has a picture of its own",
            given="no name of a set",
            allowed=", ".join(map(repr, names)),
            remedy=f"name one, as in {call}(name={names[0]!r})" if names else "iterate first",
        )
    chosen = names[0] if name is None else name
    find(chosen, names, "set")
    return sets[chosen]


def comparison_tables(planned: Figures, measured: Figures) -> list[TitledTable]:
    """Tables of the prediction beside the measurements: the epoch, and each variable."""
    title = "planned beside measured"
    if measured.num_steps < planned.num_steps:
        title += (
            f": the plan is for {planned.num_steps:,} batches, "
            f"{measured.num_steps:,} were delivered so far"
        )
    rows = [
        ["", "planned", "measured"],
        *([name, show(planned), show(measured)] for name, show in _COMPARED.items()),
    ]

    def cells(name: str) -> list[str]:
        plan, measurement = planned.variables[name], measured.variables[name]
        return [
            f"{plan.num_reads:,}",
            f"{measurement.num_reads:,}",
            show_nbytes(plan.read_nbytes),
            show_nbytes(measurement.read_nbytes),
        ]

    heads = ["variable", "reads planned", "measured", "decoded planned", "measured"]
    return [(title, rows), *list_variables(planned.variables, heads, cells)]


_COMPARED: dict[str, Callable[[Figures], str]] = {
    "samples": lambda figures: f"{figures.num_samples:,}",
    "reads": lambda figures: f"{figures.num_reads:,}",
    "decoded": lambda figures: show_nbytes(figures.read_nbytes),
    "reads per chunk": lambda figures: f"{figures.read_amplification:.3f}",
    "peak memory": lambda figures: show_nbytes(figures.peak_nbytes),
    "places per batch": lambda figures: f"{figures.mixing:.1f}",
    "in a full shuffle": lambda figures: f"{figures.full_mixing:.1f}",
}
