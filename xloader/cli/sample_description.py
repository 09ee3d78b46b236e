"""The description of samples and of a loader that commands share: their options, as values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from xloader.cli.option_texts import (
    ONE,
    Texts,
    read_label,
    read_offset,
    read_pairs,
    read_storage,
    read_values,
    split_names,
    split_pairs,
    unreadable,
)
from xloader.core.options import LoaderOptions, PlanRules
from xloader.core.ranks import World
from xloader.errors import ArrayNotGroupError, OptionError, UnsupportedDataError
from xloader.samples.samples import Samples
from xloader.samples.samples import open as open_samples
from xloader.sources.stores.redaction import safe_name

Command = Callable[..., Any]
Decorator = Callable[[Command], Command]


def _option(metavar: str | None, text: str, default: Any = None, **settings: Any) -> Any:
    """A field of `SampleDescription` that is an option of commands, too."""
    settings |= {"metavar": metavar, "help": text}
    return field(default=default, metadata=settings)


def _by_dim(text: str) -> Any:
    return _option("DIM=...", text, (), multiple=True)


@dataclass(frozen=True)
class SampleDescription:
    """The texts of the options that describe samples, which become verbs of `Samples`."""

    store: str
    variables: str | None = _option("A,B", "Variables to offer. Default: all with numbers.")
    group: str | None = _option("PATH", "Group within the store.")
    storage_option: Texts = _option(
        "NAME=VALUE",
        "Option of the file system of a URL, such as anon=true.",
        (),
        multiple=True,
    )
    sel: Texts = _by_dim("Labels to keep: time=1979:2017,level=500. Ends are included.")
    isel: Texts = _by_dim("Positions to keep, after --sel: time=0:100.")
    window: Texts = _by_dim("Elements of a window: time=6,lat=64, or a duration: time=3D.")
    stride: Texts = _by_dim("Elements between windows: time=1. Default: the window's size.")
    dilation: Texts = _by_dim("Elements between those of a window: time=4.")
    gaps: Texts = _by_dim("Windows across gaps: time=drop (the default), raise or allow.")
    wrap: str | None = _option("DIM,DIM", "Dimensions along which windows wrap: lon.")
    pad: Texts = _by_dim("Borders: lat=edge, lat=reflect or a number.")
    inputs: str | None = _option(
        "A,B@DIM=...",
        "Variables of the field inputs, and what it takes of the window: t2m,u10@time=0:2. The "
        "end of a slice is not included, as in Python.",
    )
    targets: str | None = _option(
        "A@DIM=...", "The same of the field targets: t2m@time=5 or time=+10D."
    )
    field: Texts = _option(
        "NAME=A@DIM=...",
        "The same of a field with another name: past=t2m@time=0:2.",
        (),
        multiple=True,
    )
    dropna: bool = _option(
        None, "Drop samples that hold too few valid values.", False, is_flag=True
    )
    at_least: float | None = _option(
        "SHARE",
        "Share of the values that must be valid, with --dropna. Default: all.",
        type=click.FloatRange(0, 1),
    )

    @property
    def variable_names(self) -> Texts:
        """The names of the variables; empty for all."""
        return split_names(self.variables)

    @property
    def storage_options(self) -> Mapping[str, Any] | None:
        """The options of the file system of a URL; None without any."""
        return read_storage("--storage-option", self.storage_option)

    @property
    def has_windows(self) -> bool:
        """Whether any option of windows is given."""
        return any((self.window, self.stride, self.dilation, self.gaps, self.wrap, self.pad))

    def open(self) -> Samples:
        """Open the store and call the verbs that the options name."""
        try:
            samples = open_samples(
                self.store,
                variables=self.variable_names or None,
                group=self.group,
                storage_options=self.storage_options,
            )
        except UnsupportedDataError as error:
            if not isinstance(error, ArrayNotGroupError):
                error.add_note(f"xloader inspect {safe_name(self.store)} shows what is broken.")
            raise
        samples = self._selected(samples)
        if self.has_windows:
            options = {
                name: read_pairs(f"--{name}", given, types=ONE)
                for name in ("window", "stride", "dilation", "gaps", "pad")
                if (given := getattr(self, name))
            }
            if self.wrap:
                options["wrap"] = split_names(self.wrap)
            samples = samples.window(options.pop("window", None), **options)
        for option, name, text in self._field_texts():
            variables, at, offsets = text.partition("@")
            if not split_names(variables) or "=" in variables or (at and not offsets.strip()):
                raise unreadable(option, text)
            offsets_by_dim = read_pairs(option, [offsets] if at else [], read_offset)
            samples = samples.field(name, *split_names(variables), **offsets_by_dim)
        if self.at_least is not None and not self.dropna:
            raise OptionError("the option --at-least belongs to --dropna", remedy="add --dropna")
        share = 1.0 if self.at_least is None else self.at_least
        return samples.dropna(at_least=share) if self.dropna else samples

    def open_windowed(self) -> Samples:
        """Open the store as `open` does, for a command that needs windows."""
        samples = self.open()
        if not self.has_windows:
            dims = list(samples.recipe.dim_sizes)
            raise OptionError(
                "the windows are not set",
                remedy=f"add --window, for example {dims[0]}=6, along some of {', '.join(dims)}",
            )
        return samples

    def _selected(self, samples: Samples) -> Samples:
        labels = split_pairs("--sel", self.sel)
        if labels:
            indexes = samples.coords.to_dataset().indexes
            # Labels that are dates or text stay text. Without labels, positions are selected.
            texts = {
                dim for dim in labels if dim in indexes and indexes[dim].dtype.kind not in "iuf"
            }
            selection = {
                dim: read_values(values, str if dim in texts else read_label)
                for dim, values in labels.items()
            }
            samples = samples.sel(selection)
        positions = read_pairs("--isel", self.isel)
        return samples.isel(positions) if positions else samples

    def _field_texts(self) -> Iterator[tuple[str, str, str]]:
        """The option, the name and the variables and offsets of each field."""
        for name, text in (("inputs", self.inputs), ("targets", self.targets)):
            if text is not None:
                yield f"--{name}", name, text
        for text in self.field:
            name, sign, rest = text.partition("=")
            if not sign or "@" in name:
                raise unreadable("--field", text, problem="has no name")
            yield "--field", name.strip(), rest


class SampleOption(click.Option):
    """An option that describes samples; `SampleCommand` lists these under a heading."""


class LoaderOption(click.Option):
    """An option of a loader that decides its plan."""


class SampleCommand(click.Command):
    """A command that takes the options of samples as ``description``, and lists them apart.

    Those of a loader it takes as ``loader_options``.
    """

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under two headings."""
        for heading, is_sample in (("Samples", True), ("Options", False)):
            rows = [
                row
                for param in self.get_params(context)
                if isinstance(param, click.Option)
                and isinstance(param, SampleOption) == is_sample
                and (row := param.get_help_record(context)) is not None
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, context: click.Context) -> Any:
        """Call the function of the command."""
        kinds = {param.name: type(param) for param in self.params}
        options = dict(context.params)
        of_samples, of_loader = (
            {name: options.pop(name) for name, kind in kinds.items() if kind is wanted}
            for wanted in (SampleOption, LoaderOption)
        )
        options["description"] = SampleDescription(options.pop("store"), **of_samples)
        if of_loader:
            options["loader_options"] = _read_loader_options(of_loader)
        assert self.callback is not None, "every command has a function"
        return context.invoke(self.callback, **options)


def _read_loader_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a loader that are given, as `Samples.loader` takes them."""
    options = {
        # For a job, the loader's memory has another name than its own.
        name.removeprefix("loader_"): value
        for name, value in given.items()
        if value is not None
    }
    rules = {name: options.pop(name) for name in PlanRules.__dataclass_fields__ if name in options}
    if rules:
        options["plan"] = PlanRules(**rules)
    if "world_size" in options:
        # Plans are alike on all ranks, so any one will do.
        options["world"] = World(0, options.pop("world_size"))
    return options


def decorated(command: Command, decorators: Iterable[Decorator]) -> Command:
    """A command with options, which its help lists in this order."""
    for decorate in reversed(tuple(decorators)):
        command = decorate(command)
    return command


_SAMPLE_OPTIONS: Final = tuple(
    click.option(f"--{each.name.replace('_', '-')}", cls=SampleOption, **each.metadata)
    for each in fields(SampleDescription)[1:]
)
# The completion of a store's path is left to the shell.
_STORE: Final = click.argument(
    "store", shell_complete=lambda *given: [CompletionItem(given[-1], type="file")]
)


def takes_samples(command: Command) -> Command:
    """Decorate a command with ``STORE`` and the options that describe samples."""
    return decorated(command, (_STORE, *_SAMPLE_OPTIONS))


def takes_store(command: Command) -> Command:
    """Decorate a command with ``STORE`` and the options with which it is opened."""
    return decorated(command, (_STORE, *_SAMPLE_OPTIONS[:3]))


_DEFAULTS: Final = {
    **{each.name: each.default for kind in (LoaderOptions, PlanRules) for each in fields(kind)},
    "world_size": 1,
}


def _loader_option(name: str, text: str, opposite: str = "") -> Decorator:
    """An option of the type of a loader's, with its default in the text. `opposite`: of a flag."""
    default = _DEFAULTS[name.removeprefix("loader_")]
    kind = int if default is None else type(default)
    if name.endswith("memory"):
        kind = str
    flag = f"--{name.replace('_', '-')}"
    settings: dict[str, Any] = {
        "type": kind,
        "metavar": {int: "N", float: "X", str: "SIZE"}.get(kind),
    }
    if opposite:
        settings, flag = {"default": None}, f"{flag}/--{opposite}"
    return click.option(flag, cls=LoaderOption, help=text.format(default), **settings)


_PLAN_OPTIONS: Final = (
    _loader_option("batch_size", "Samples of a batch on each rank. Default: {}."),
    _loader_option("world_size", "Number of ranks. Default: {}."),
    _loader_option("lanes", "Independent parts of the order."),
    _loader_option("prefetch", "Batches made ahead. Default: {}."),
    _loader_option("max_amplification", "How often a chunk may be read on average. Default: {}."),
)
_ORDER_OPTIONS: Final = (
    _loader_option(
        "shuffle", "Whether samples come in random order. Default: they do.", "no-shuffle"
    ),
    _loader_option("seed", "Seed of the order. Default: {}."),
    _loader_option("drop_last", "Whether a last batch that is not full is left out.", "keep-last"),
    _loader_option("steps", "Batches of an epoch, all full. Default: those of all samples."),
    _loader_option("spread", "Tiles in memory beside the newest one. Default: as many as fit."),
    _loader_option("processes", "Worker processes. Default: {}."),
    _loader_option("threads", "Default: the number of cores."),
)
"""Options for commands that plan or run one loader just as a training would."""


def takes_loader_options(memory: str = "memory", *, has_order: bool = False) -> Decorator:
    """Decorate a command with options of a loader. `memory`: the name of that for its memory."""
    last = _loader_option(memory, "The loader's memory. Default: by the machine and the data.")
    order = _ORDER_OPTIONS if has_order else ()
    return lambda command: decorated(command, (*_PLAN_OPTIONS, *order, last))
