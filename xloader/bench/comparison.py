"""Compares xloader with a plain PyTorch ``DataLoader`` and with xbatcher, on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from xloader.bench.plain_samples import (
    IselSamples,
    PlainOpener,
    XbatcherSamples,
    extra_of_xbatcher,
    why_not_plain,
    why_not_xbatcher,
)
from xloader.bench.turns import BatchSize, LoaderSpeed, Pass, measure_in_turns
from xloader.core.messages import show_count
from xloader.samples.samples import Samples
from xloader.show.cards import align_columns

OURS: Final = "xloader"
PLAIN: Final = "DataLoader over isel"
XBATCHER: Final = "DataLoader over xbatcher"

_OF_DATALOADER: Final = {"batch_size": 32, "shuffle": True, "seed": 0, "drop_last": False}
"""Options of a loader that a ``DataLoader`` has too, and their defaults."""


@dataclass(frozen=True)
class LoaderComparison:
    """Speeds of several loaders over the same samples."""

    speeds: tuple[LoaderSpeed, ...]
    left_out: Mapping[str, str]
    batch_size: int
    num_samples: int
    num_workers: int
    extra: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def epoch_size(self, name: str) -> int:
        """Samples of an epoch of one loader."""
        return self.num_samples + sum(self.extra.get(name, {}).values())

    @property
    def ratios(self) -> dict[str, float]:
        """How many times as fast as each other loader xloader is."""
        ours = self.speeds[0].samples_per_second
        return {speed.name: ours / speed.samples_per_second for speed in self.speeds}

    def to_dict(self) -> dict[str, Any]:
        """The speeds with their ratios, in types that JSON can hold."""
        return {
            "batch_size": self.batch_size,
            "num_samples": self.num_samples,
            "num_workers": self.num_workers,
            "loaders": [
                {**speed.to_dict(), "xloader_is_times_as_fast": self.ratios[speed.name]}
                for speed in self.speeds
            ],
            "left_out": dict(self.left_out),
            "extra": {name: dict(counts) for name, counts in self.extra.items()},
        }

    def __str__(self) -> str:
        rows = [["loader", "batches/s", "samples/s", "GB/s", "epochs", "first batch", "xloader is"]]
        for speed in self.speeds:
            ratio = self.ratios[speed.name]
            rows.append(
                [
                    speed.name,
                    f"{speed.batches_per_second:,.1f}",
                    f"{speed.samples_per_second:,.0f}",
                    f"{speed.gb_per_second:.3f}",
                    f"{speed.num_samples / self.epoch_size(speed.name):,.2f}",
                    f"{speed.first_seconds:.2f} s",
                    "" if speed.name == OURS else f"{ratio:,.1f} times as fast",
                ]
            )
        samples = show_count(self.num_samples, "sample")
        workers = show_count(self.num_workers, "worker")
        lines = [
            f"{samples} in batches of {self.batch_size}; {workers} a DataLoader",
            align_columns(rows),
        ]
        lines += [
            f"{name} takes {self.epoch_size(name):,} samples an epoch, {_in_words(counts)}"
            for name, counts in self.extra.items()
        ]
        lines += [f"{name} is left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(lines)


def compare_loaders(
    samples: Samples,
    opener: PlainOpener,
    *,
    seconds: float,
    num_workers: int,
    loader_options: Mapping[str, Any],
) -> LoaderComparison:
    """Measure loaders over samples, in turns."""
    recipe = samples.recipe
    opener = replace(opener, selection=recipe.selection)
    has_torch = find_spec("torch") is not None
    left_out = {PLAIN: why_not_plain(recipe), XBATCHER: why_not_xbatcher(recipe)}
    if find_spec("xbatcher") is None:
        left_out[XBATCHER] = "xbatcher is not installed"
    if not has_torch:
        left_out |= dict.fromkeys((PLAIN, XBATCHER), "PyTorch is not installed")
    extra = {} if left_out[XBATCHER] else extra_of_xbatcher(recipe)
    options = {**loader_options, "output": "torch" if has_torch else "numpy"}
    passes: dict[str, Pass] = {OURS: partial(_our_epoch, samples, options)}
    common = {**_OF_DATALOADER, **{k: v for k, v in loader_options.items() if k in _OF_DATALOADER}}
    kinds: dict[str, Callable[..., Any]] = {PLAIN: IselSamples, XBATCHER: XbatcherSamples}
    with ExitStack() as at_end:
        for name, kind in kinds.items():
            if not left_out[name]:
                # It imports torch.
                from xloader.bench.torch_loaders import DataLoaderPass

                epochs = DataLoaderPass(kind(recipe, opener), num_workers=num_workers, **common)
                passes[name] = epochs
                at_end.callback(epochs.close)
        speeds, failed = measure_in_turns(passes, seconds, must=OURS)
    return LoaderComparison(
        tuple(speeds),
        {name: reason for name, reason in (left_out | failed).items() if reason},
        common["batch_size"],
        len(samples),
        num_workers,
        {XBATCHER: extra} if XBATCHER in {speed.name for speed in speeds} and extra else {},
    )


def _in_words(extra: Mapping[str, int]) -> str:
    words = {"gap": "across gaps", "dropped": "that were dropped here"}
    parts = [f"{show_count(count, 'window')} {words[why]}" for why, count in extra.items()]
    return f"with {' and '.join(parts)}: it does not know of these"


def _our_epoch(samples: Samples, options: Mapping[str, Any]) -> Iterator[BatchSize]:
    # A new loader in each turn: what another has kept in memory would be no reading.
    # The plain loops beside it look for no NaN either.
    with samples.loader(**{**options, "on_nan": "ignore"}) as loader:
        for batch in loader:
            yield BatchSize(len(batch[0]), sum(field.nbytes for field in batch))
