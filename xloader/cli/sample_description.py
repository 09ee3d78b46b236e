"""The description of samples that all commands share, and the options that it is made of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from xloader.cli import option_texts
from xloader.cli.option_texts import Texts
from xloader.errors import ArrayNotGroupError, OptionError, UnsupportedDataError
from xloader.samples.samples import Samples
from xloader.samples.samples import open as open_samples
from xloader.sources.stores.redaction import safe_name


@dataclass(frozen=True)
class SampleDescription:
    """The texts of the options that describe samples, which become verbs of `Samples`."""

    store: str
    variables: str | None = None
    group: str | None = None
    storage_option: Texts = ()
    sel: Texts = ()
    isel: Texts = ()
    window: Texts = ()
    stride: Texts = ()
    dilation: Texts = ()
    gaps: Texts = ()
    wrap: str | None = None
    pad: Texts = ()
    inputs: str | None = None
    targets: str | None = None
    field: Texts = ()
    dropna: bool = False
    at_least: float | None = None

    @property
    def variable_names(self) -> Texts:
        """The names of the variables; empty for all."""
        return option_texts.split_names(self.variables)

    @property
    def storage_options(self) -> Mapping[str, Any] | None:
        """The options of the file system of a URL; None without any."""
        return option_texts.read_storage("--storage-option", self.storage_option)

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
            samples = samples.window(**self._window_arguments())
        for name, text in self._field_texts():
            variables, offsets = option_texts.read_fields(f"--{name}", text)
            samples = samples.field(name, *variables, **offsets)
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
                allowed=f"windows along some of {', '.join(map(repr, dims))}",
                remedy=f"add for example --window {dims[0] if dims else 'time'}=6",
            )
        return samples

    def _selected(self, samples: Samples) -> Samples:
        labels = option_texts.split_pairs("--sel", self.sel)
        if labels:
            indexes = samples.coords.to_dataset().indexes
            readers = {
                # Labels that are dates or text stay text. Without labels, positions are selected.
                dim: option_texts.read_number
                if dim not in indexes or indexes[dim].dtype.kind in "iuf"
                else str
                for dim in labels
            }
            samples = samples.sel(
                {
                    dim: option_texts.read_selection(values, readers[dim])
                    for dim, values in labels.items()
                }
            )
        positions = option_texts.split_pairs("--isel", self.isel)
        if positions:
            samples = samples.isel(
                {dim: option_texts.read_selection(values) for dim, values in positions.items()}
            )
        return samples

    def _window_arguments(self) -> dict[str, Any]:
        read_size = option_texts.read_size
        sizes = option_texts.plain_or_pairs("--window", self.window, read_size)
        arguments: dict[str, Any] = {"sizes": sizes or None}
        for word in ("stride", "dilation"):
            if texts := getattr(self, word):
                arguments[word] = option_texts.plain_or_pairs(f"--{word}", texts, read_size)
        if self.gaps:
            arguments["gaps"] = option_texts.plain_or_pairs("--gaps", self.gaps, str)
        if self.wrap:
            arguments["wrap"] = option_texts.split_names(self.wrap)
        if self.pad:
            pairs = option_texts.split_pairs("--pad", self.pad)
            arguments["pad"] = {
                dim: option_texts.read_selection(values, option_texts.read_pad)
                for dim, values in pairs.items()
            }
        return arguments

    def _field_texts(self) -> list[tuple[str, str]]:
        named = [("inputs", self.inputs), ("targets", self.targets)]
        texts = [(name, text) for name, text in named if text is not None]
        for text in self.field:
            name, sign, rest = text.partition("=")
            if not sign or "@" in name:
                raise OptionError(
                    "the option --field has no name",
                    given=text,
                    remedy="write for example --field past=t2m@time=0:2",
                )
            texts.append((name.strip(), rest))
        return texts


class SampleOption(click.Option):
    """An option that describes samples; `SampleCommand` lists these under a heading."""


class SampleCommand(click.Command):
    """A command whose help lists the options of the samples apart, and keeps its examples."""

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
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _option(flag: str, metavar: str, text: str, **settings: Any) -> tuple[str, Decorator]:
    """The name of an option as a field of `SampleDescription`, and what adds it to a command."""
    name = flag.removeprefix("--").replace("-", "_")
    settings |= {"help": text, "metavar": metavar or None}
    return name, click.option(flag, cls=SampleOption, **settings)


def _by_dim(flag: str, text: str) -> tuple[str, Decorator]:
    return _option(flag, "DIM=...", text, multiple=True)


_STORE_OPTIONS: tuple[tuple[str, Decorator], ...] = (
    _option("--variables", "A,B", "Variables to offer. Default: all with numbers."),
    _option("--group", "PATH", "Group within the store."),
    _option(
        "--storage-option",
        "NAME=VALUE",
        "Option of the file system of a URL, such as anon=true.",
        multiple=True,
    ),
)
_OPTIONS: tuple[tuple[str, Decorator], ...] = (
    *_STORE_OPTIONS,
    _by_dim("--sel", "Labels to keep: time=1979:2017,level=500. Ends are included."),
    _by_dim("--isel", "Positions to keep, after --sel: time=0:100."),
    _by_dim("--window", "Elements of a window: time=6,lat=64, or a duration: time=3D."),
    _by_dim("--stride", "Elements between windows: time=1. Default: the window's size."),
    _by_dim("--dilation", "Elements between those of a window: time=4."),
    _by_dim("--gaps", "Windows across gaps: time=drop (the default), raise or allow."),
    _option("--wrap", "DIM,DIM", "Dimensions along which windows wrap: lon."),
    _by_dim("--pad", "Borders: lat=edge, lat=reflect or a number."),
    _option(
        "--inputs",
        "A,B@DIM=...",
        "Variables of the field inputs, and what it takes of the window: t2m,u10@time=0:2. The "
        "end of a slice is not included, as in Python.",
    ),
    _option("--targets", "A@DIM=...", "The same of the field targets: t2m@time=5 or time=+10D."),
    _option(
        "--field",
        "NAME=A@DIM=...",
        "The same of a field with another name: past=t2m@time=0:2.",
        multiple=True,
    ),
    _option("--dropna", "", "Drop samples that hold too few valid values.", is_flag=True),
    _option(
        "--at-least",
        "SHARE",
        "Share of the values that must be valid, with --dropna. Default: all.",
        type=click.FloatRange(0, 1),
    ),
)


def takes_samples(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with ``STORE`` and the options that describe samples."""
    return _described(command, _OPTIONS)


def takes_store(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with ``STORE`` and the options with which it is opened."""
    return _described(command, _STORE_OPTIONS)


def _described(
    command: Callable[..., None], options: tuple[tuple[str, Decorator], ...]
) -> Callable[..., None]:
    @functools.wraps(command)
    def described(**given: Any) -> None:
        texts = {name: given.pop(name) for name in ("store", *dict(options))}
        command(description=SampleDescription(**texts), **given)

    decorated: Callable[..., None] = described
    for _, decorate in reversed(options):
        decorated = decorate(decorated)
    # The completion of a store's path is left to the shell.
    return click.argument(
        "store", shell_complete=lambda *given: [CompletionItem(given[-1], type="file")]
    )(decorated)
