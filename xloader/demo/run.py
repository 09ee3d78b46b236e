"""The whole of ``xloader demo``: data, plan, training, scores, report, speed and picture.

`run_demo` does these steps in order and prints what happens.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import torch
import xarray as xr
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from xloader.demo.climate import Climate, measure_climate
from xloader.demo.model import ForecastNet
from xloader.demo.store import ensure_store, store_path
from xloader.demo.task import (
    ForecastTask,
    find_task,
    is_latitude,
    lead_label,
    open_dataset,
    row_weights,
    stack_channels,
)
from xloader.demo.training import (
    Calendar,
    Example,
    Progress,
    Score,
    TrainingResult,
    evaluate,
    format_scores,
    loss_weights,
    make_net,
    make_scores,
    split_samples,
    train,
)
from xloader.demo.waves import VARIABLE_ATTRS, WaveSpec
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.show.canvas import PlotAxis, new_picture
from xloader.show.json_values import values_by_name
from xloader.show.map_plots import draw_map
from xloader.show.plot_axes import axis_of

if TYPE_CHECKING:
    from xloader.loader.loader import Loader
    from xloader.samples.samples import Samples


@dataclass(frozen=True)
class Panels:
    """The content of the picture: maps of one variable of one sample."""

    title: str
    units: str
    truth: NDArray[np.float32]
    forecast: NDArray[np.float32]
    persistence: NDArray[np.float32]
    weights: NDArray[np.float64]
    rows: PlotAxis
    columns: PlotAxis

    def rmse(self, guess: NDArray[np.float32]) -> float:
        """Weighted RMSE of a map against the truth, in the maps' units."""
        square = np.where(self.weights > 0, np.square(guess - self.truth, dtype=np.float64), 0.0)
        return float(np.sqrt((square * self.weights).sum() / self.weights.sum()))


def draw(panels: Panels, path: Path) -> None:
    """Draw four maps and write them as a PNG.

    ::

        truth       forecast               one colour scale
        forecast    persistence
          error       error                one colour scale, white at 0
    """
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"}):
        figure = new_picture(11, 6.6)
        axes = figure.subplots(2, 2, sharex=True, sharey=True)
        figure.suptitle(panels.title, fontsize=12)
        states = {"Truth": panels.truth, "Forecast": panels.forecast}
        low, high = np.nanpercentile(np.stack(list(states.values())), [0.5, 99.5])
        _draw_row(figure, axes[0], panels, states, "viridis", (float(low), float(high)))
        guesses = {"Forecast": panels.forecast, "Persistence": panels.persistence}
        errors = {
            f"{name} minus truth: RMSE {panels.rmse(guess):.3g} {panels.units}".rstrip(): guess
            - panels.truth
            for name, guess in guesses.items()
        }
        edge = float(np.nanpercentile(np.abs(panels.persistence - panels.truth), 99.5)) or 1.0
        _draw_row(figure, axes[1], panels, errors, "RdBu_r", (-edge, edge))
        figure.supxlabel(panels.columns.label)
        figure.supylabel(panels.rows.label)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, format="png")


def _draw_row(
    figure: Figure,
    axes: NDArray[np.object_],
    panels: Panels,
    maps: dict[str, NDArray[np.float32]],
    colours: str,
    ends: tuple[float, float],
) -> None:
    """Draw maps under their titles, on one colour scale."""
    for axis, (title, values) in zip(axes, maps.items(), strict=True):
        mesh = draw_map(axis, panels.columns, panels.rows, values, colours, *ends)
        axis.set_title(title)
    figure.colorbar(mesh, ax=list(axes), extend="both", label=panels.units, aspect=22, pad=0.01)


# Less than half of the demo's own store, so that not all chunks fit and the plan matters.
OWN_MEMORY = "128MiB"
USER_MEMORY = "1GiB"


@dataclass(frozen=True)
class DemoOptions:
    """The options of ``xloader demo``.

    `seconds`: wall time in seconds after which training ends, even if steps are left.
    `plain_seconds`: wall time in seconds for the comparison with a plain torch dataset.
    """

    store: str | None = None
    variables: tuple[str, ...] = ()
    time_dim: str = "time"
    lead: int = 6
    batch_size: int = 16
    memory: str | None = None
    # Two epochs of the demo's own store. 20 steps beat persistence by 40 %, 180 by 63 %.
    steps: int = 180
    seconds: float = 300.0
    plain_seconds: float = 10.0
    seed: int = 0
    picture: Path = Path("xloader-demo.png")
    cache: Path | None = None
    spec: WaveSpec = field(default_factory=WaveSpec)

    @property
    def budget(self) -> str:
        """The loader's memory: ``memory`` if given, else the default for the kind of store."""
        return self.memory or (USER_MEMORY if self.store else OWN_MEMORY)


@dataclass(frozen=True)
class DemoResult:
    """The results of a demo."""

    scores: tuple[Score, ...]
    training: TrainingResult
    speed: Speed
    plain: Speed
    picture: Path

    def to_dict(self) -> dict[str, Any]:
        """The results by name, in types that JSON can hold but for those of the report."""
        speeds = {
            name: values_by_name(speed, "gb_per_second")
            for name, speed in (("speed", self.speed), ("plain", self.plain))
        }
        return values_by_name(self) | speeds | {"picture": self.picture.resolve()}


def run_demo(options: DemoOptions) -> DemoResult:
    """Train a small forecast model from a chunked store, and print what happens."""
    path = options.store or str(_own_store(options))
    with open_dataset(path) as dataset:
        names = options.variables or (() if options.store else tuple(VARIABLE_ATTRS))
        task = find_task(dataset, variables=names, time_dim=options.time_dim, lead=options.lead)
        climate = measure_climate(dataset, task)
        demo = _Demo(dataset, task, climate, options)
        demo.print_data(path)
        train_part, test_part = split_samples(path, task, climate)
        with demo.loader(train_part) as loader:
            print(f"\nThe plan, before the first read\n{loader.explain()}\n", flush=True)
            net, training = demo.train(loader)
        with demo.loader(test_part, shuffle=False) as loader:
            scores, example = demo.score(net, loader)
        print(f"\n{_measured(training)}\n{training.report}")
        print(_plan_tag(training), flush=True)
        speed, plain = demo.compare(train_part)
        draw(demo.panels(example), options.picture)
    print(f"\nPicture: {options.picture.resolve()}")
    return DemoResult(scores, training, speed, plain, options.picture)


def _own_store(options: DemoOptions) -> Path:
    """The path of the demo's own store, made with a progress bar if it is not in the cache."""
    cache, spec = options.cache or default_cache_dir(), options.spec
    is_made = store_path(cache, spec).is_dir()
    with tqdm(total=spec.num_steps, desc="Making waves", unit=" steps", disable=is_made) as bar:
        return ensure_store(cache, spec, on_progress=lambda done, _: bar.update(done - bar.n))


@dataclass(frozen=True, eq=False)
class _Demo:
    """The steps of the demo over one dataset; each prints what happens."""

    dataset: xr.Dataset
    task: ForecastTask
    climate: Climate
    options: DemoOptions

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Weight of each point of each channel."""
        return loss_weights(row_weights(self.dataset, self.task.space_dims[0]), self.climate)

    @property
    def lead(self) -> str:
        """The lead in words."""
        return lead_label(self.dataset, self.task)

    def loader(self, samples: Samples, *, shuffle: bool = True) -> Loader:
        """A loader of some samples, as the options ask for it."""
        options = self.options
        return samples.loader(
            batch_size=options.batch_size,
            shuffle=shuffle,
            seed=options.seed,
            memory=options.budget,
            output="torch",
        )

    def calendar(self, part: slice) -> Calendar:
        """The phases of a part of time."""
        return Calendar(torch.from_numpy(self.climate.phases[part]), self.task.lead)

    def print_data(self, path: str) -> None:
        """Print what was opened, how it is split and what happens to missing values."""
        task, variables = self.task, self.dataset[list(self.task.variables)]
        sizes = variables[task.variables[0]].sizes
        shape = " x ".join(f"{size} {dim}" for dim, size in sizes.items())
        nbytes = sum(variable.nbytes for variable in variables.values())
        print(f"Data      {path}")
        print(f"          {', '.join(task.variables)}: {shape} each, {nbytes / 1e6:.0f} MB decoded")
        print(f"Forecast  {self.lead} ahead, all variables from all variables")
        print(
            f"Split     trained on the first {task.num_train} steps of {task.time_dim}, "
            f"scored on the last {task.num_steps - task.num_train}"
        )
        print(f"Scaling   mean and spread from {self.climate.num_steps} of the training steps")
        for name, share in self.climate.nan_share.items():
            if share > 0:
                print(
                    f"NaN       {100 * share:.0f} % of {name}; filled with the mean after "
                    "normalising; points without a value at some step are not scored"
                )

    def train(self, loader: Loader) -> tuple[ForecastNet, TrainingResult]:
        """Make a network and train it, with a progress bar."""
        net, spread = make_net(self.dataset, self.task, self.climate, self.options.seed)
        style = "{desc} {percentage:3.0f}% |{bar}| {elapsed} {postfix}"
        with tqdm(total=100, desc="Training", bar_format=style) as bar:

            def show(progress: Progress) -> None:
                """Show epoch, step and loss in the progress bar."""
                text = f"epoch {progress.epoch}, step {progress.step}, loss {progress.loss:.3f}"
                bar.set_postfix_str(text, refresh=False)
                bar.update(100 * progress.share - bar.n)

            training = train(
                net,
                loader,
                calendar=self.calendar(slice(self.task.num_train)),
                weights=self.weights,
                spread=spread,
                steps=self.options.steps,
                seconds=self.options.seconds,
                on_progress=show,
            )
        print(training.describe(), flush=True)
        return net, training

    def score(self, net: ForecastNet, loader: Loader) -> tuple[tuple[Score, ...], Example]:
        """Score the network on the held-out part.

        It may take half of the ``seconds`` of the options, and 30 s at least.
        """
        task, climate = self.task, self.climate
        sums, example = evaluate(
            net,
            loader,
            calendar=self.calendar(slice(task.num_train, None)),
            climate=climate,
            weights=self.weights,
            example_index=task.num_test_samples // 2,
            seconds=max(30.0, self.options.seconds / 2),
        )
        units = {name: str(self.dataset[name].attrs.get("units", "")) for name in task.variables}
        scores = make_scores(sums, climate, units)
        is_weighted = is_latitude(self.dataset, task.space_dims[0])
        mean = "each calendar month" if len(climate.cycle) > 1 else "the training part"
        print(
            f"\nRMSE {self.lead} ahead on {sums.num_samples} of {task.num_test_samples} held-out "
            f"samples{', weighted by latitude' * is_weighted}; "
            f"climatology is the mean of {mean}\n{format_scores(scores)}",
            flush=True,
        )
        return scores, example

    def compare(self, samples: Samples) -> tuple[Speed, Speed]:
        """Time an epoch without a model, through xloader and a plain torch dataset."""
        options = self.options
        print("\nThe same epoch without a model", flush=True)
        # The loader of the training may still hold decoded chunks, so a new one is timed.
        with self.loader(samples) as loader:
            speed = measure_speed(loader, seconds=max(options.plain_seconds, 1.0))
        plain = measure_plain(
            self.dataset, self.task, options.batch_size, options.seed, options.plain_seconds
        )
        for name, result in (("xloader", speed), ("DataLoader(shuffle=True) over isel", plain)):
            cut = f"cut off after {result.seconds:.0f} s"
            print(
                f"  {name:<36}{result.gb_per_second:8.3f} GB/s   "
                f"{result.num_batches} batches in {result.seconds:.1f} s "
                f"({'whole epoch' if result.is_whole_epoch else cut})"
            )
        print(f"  xloader delivers {speed.gb_per_second / plain.gb_per_second:.0f} x as fast")
        return speed, plain

    def panels(self, example: Example) -> Panels:
        """The first channel of the example, for the picture."""
        dataset, task, mask = self.dataset, self.task, self.climate.mask[0]
        row_dim, column_dim = task.space_dims
        name = self.climate.channel_variables[0]
        attrs = dataset[name].attrs

        def shown(maps: NDArray[np.float32]) -> NDArray[np.float32]:
            """One map, with NaN outside the mask."""
            return np.where(mask, maps[0], np.float32(np.nan))

        when = ""
        if task.time_dim in dataset.coords:
            label = dataset[task.time_dim].values[task.num_train + example.index + task.lead]
            when = f", {str(label)[:16].replace('T', ' ')}"
        return Panels(
            title=f"{attrs.get('long_name', name)} ({name}), {self.lead} forecast{when}",
            units=str(attrs.get("units", "")),
            truth=shown(example.truth),
            forecast=shown(example.forecast),
            persistence=shown(example.persistence),
            weights=self.weights[0],
            rows=axis_of(row_dim, row_dim, dataset),
            columns=axis_of(column_dim, column_dim, dataset),
        )


def _measured(training: TrainingResult) -> str:
    """Headline of the report: the epoch that it measures."""
    if training.num_epochs:
        return "The last whole training epoch, as measured"
    return (
        f"The first {training.num_cut} of {training.epoch_size} batches of an unfinished epoch, "
        "as measured"
    )


def _plan_tag(training: TrainingResult) -> str:
    """One line with the predicted and the measured number of reads."""
    explanation, report = training.explanation, training.report
    whole = "" if training.num_epochs else " for the whole epoch"
    return (
        f"Predicted {explanation.num_reads} reads{whole}, amplification "
        f"{explanation.read_amplification:.3f}; measured {report.num_reads} reads, "
        f"{report.read_amplification:.3f}"
    )


class PlainDataset(Dataset[tuple[Tensor, Tensor]]):
    """Map-style dataset that reads the two time steps of one sample by ``dataset.isel``."""

    def __init__(self, dataset: xr.Dataset, task: ForecastTask) -> None:
        self._dataset = dataset[list(task.variables)]
        self._task = task

    def __len__(self) -> int:
        return self._task.num_train_samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        steps = [index, index + self._task.lead]
        pair = stack_channels(self._dataset.isel({self._task.time_dim: steps}), self._task)
        inputs, targets = torch.from_numpy(pair.astype(np.float32, copy=False))
        return inputs, targets


@dataclass(frozen=True)
class Speed:
    """Number and size of the batches that a loader delivered, and the time they took."""

    num_batches: int
    delivered_nbytes: int
    seconds: float
    is_whole_epoch: bool

    @property
    def gb_per_second(self) -> float:
        """Delivered bytes per second, in units of 10^9 bytes."""
        return self.delivered_nbytes / self.seconds / 1e9


def measure_plain(
    dataset: xr.Dataset, task: ForecastTask, batch_size: int, seed: int, seconds: float
) -> Speed:
    """Time torch's own ``DataLoader(shuffle=True)`` over a `PlainDataset`, without a model."""
    loader = DataLoader(
        PlainDataset(dataset, task),
        batch_size=batch_size,
        shuffle=True,
        generator=torch.Generator().manual_seed(seed),
    )
    return measure_speed(loader, seconds=seconds)


def measure_speed(loader: object, *, seconds: float) -> Speed:
    """Time the batches of one epoch of a loader, without a model."""
    begin = time.perf_counter()
    num_batches, num_bytes, elapsed, is_whole = 0, 0, 1e-9, True
    for inputs, targets in loader:  # type: ignore[attr-defined]
        num_batches += 1
        num_bytes += inputs.nbytes + targets.nbytes
        elapsed = time.perf_counter() - begin
        if elapsed > seconds:
            is_whole = False
            break
    return Speed(num_batches, num_bytes, elapsed, is_whole)
