"""The whole of ``xloader demo``: data, plan, training, scores, report and picture.

`run_demo` does these steps in order and prints what happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

from xloader.demo.task import ForecastTask, is_latitude, make_task
from xloader.demo.training import (
    ForecastNet,
    Score,
    TrainingResult,
    format_scores,
    make_net,
    score,
    train,
)
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.recipe.label_steps import show_label
from xloader.show.canvas import new_picture
from xloader.show.json_values import values_by_name
from xloader.show.map_plots import draw_map
from xloader.show.plot_axes import axis_of
from xloader.testing.waves import VARIABLE_ATTRS, WaveSpec, ensure_store, store_path

# Less than half of the demo's own store, so that not all chunks fit and the plan matters.
OWN_MEMORY = "128MiB"
USER_MEMORY = "1GiB"


@dataclass(frozen=True)
class DemoResult:
    """The results of a demo."""

    scores: tuple[Score, ...]
    training: TrainingResult
    picture: Path

    def to_dict(self) -> dict[str, Any]:
        """The results by name, in types that JSON can hold but for those of the report."""
        return values_by_name(self) | {"picture": self.picture.resolve()}


def run_demo(
    store: str | None = None,
    *,
    variables: Sequence[str] = (),
    time_dim: str = "time",
    lead: int = 6,
    memory: str | None = None,
    batch_size: int = 16,
    # Two epochs of the demo's own store. 20 steps beat persistence by 42 %, 180 by 62 %.
    steps: int = 180,
    seconds: float = 300.0,
    seed: int = 0,
    picture: Path = Path("xloader-demo.png"),
    cache: Path | None = None,
    spec: WaveSpec | None = None,
) -> DemoResult:
    """Train a small forecast model from a chunked store, and print what happens."""
    path = store or _own_store(cache or default_cache_dir(), spec or WaveSpec())
    names = variables or (() if store else tuple(VARIABLE_ATTRS))
    task = make_task(path, variables=names, time_dim=time_dim, lead=lead)
    _print_task(path, task)
    budget = memory or (USER_MEMORY if store else OWN_MEMORY)
    options: Any = {"batch_size": batch_size, "seed": seed, "memory": budget, "output": "torch"}

    with task.training.loader(**options) as loader:
        print(f"\nThe plan, before the first read\n{loader.explain()}\n", flush=True)
        net = make_net(task, seed)
        training = train(net, loader, torch.from_numpy(task.weights), steps, seconds)
    print(training.describe(), flush=True)
    if training.num_steps < steps:
        print(f"Time was up before all {steps} steps: for smaller errors, pass more --seconds")

    with task.held_out.loader(shuffle=False, **options) as loader:
        num_scored, scores = score(net, loader, task, max(30.0, seconds / 2))
    weighted = ", weighted by latitude" * is_latitude(task.mean.coords, task.grid[0])
    print(
        f"\nRMSE {task.lead_text} ahead, on {num_scored} of {len(task.held_out)} held-out samples"
        f"{weighted}; climatology is the mean of {_climatology(task)}\n{format_scores(scores)}",
        flush=True,
    )

    draw_forecast(net, task, picture)
    print(f"\nPicture: {picture.resolve()}")
    print("Other loaders over the same samples are timed by: xloader bench")
    return DemoResult(scores, training, picture)


def _own_store(cache: Path, spec: WaveSpec) -> str:
    """The path of the demo's own store, made if it is not in the cache."""
    path = store_path(cache, spec)
    if not path.is_dir():
        print(f"Making a store of waves: {path}", flush=True)
    ensure_store(path, spec)
    return str(path)


def _climatology(task: ForecastTask) -> str:
    return "each calendar month" if "month" in task.mean.dims else "the training part"


def _print_task(path: str, task: ForecastTask) -> None:
    """Print what was opened, how it is split and what happens to missing values."""
    training = task.training
    shapes = " x ".join(f"{training.sizes[dim]} {dim}" for dim in (task.time_dim, *task.grid))
    print(f"Data      {path}")
    print(f"          {', '.join(task.variables)}: {shapes} to train on")
    print(f"Forecast  {task.lead_text} ahead, all variables from all variables")
    print(
        f"Samples   {len(training)} to train on, and {len(task.held_out)} of later times to score"
    )
    print(f"Scaling   departures from the mean of {_climatology(task)}, in standard deviations")
    for name, share in task.nan_share.items():
        if share > 0:
            print(
                f"NaN       {100 * share:.0f} % of {name}; filled with the mean after "
                "normalising; points without a value at some step are not scored"
            )


def draw_forecast(net: ForecastNet, task: ForecastTask, path: Path) -> None:
    """Draw maps of the first channel of the sample in the middle, and write them as a PNG.

    ::

        truth       forecast               one colour scale
        forecast    persistence
          error       error                one colour scale, white at 0
    """
    index = len(task.held_out) // 2
    inputs, targets = task.held_out[index]
    with torch.inference_mode():
        device = next(net.parameters()).device
        batch = torch.from_numpy(inputs[None]).to(device, torch.float32)
        fields = np.stack([targets, net(batch)[0].cpu().numpy(), inputs])
    in_units = task.held_out.denormalize(fields, "targets", ids=np.full(3, index))
    cells = task.weights[0]
    truth, forecast, persistence = np.where(cells > 0, in_units[:, 0], np.nan)
    name = task.variables[0]
    attrs = task.mean[name].attrs
    units = str(attrs.get("units", ""))
    labels = task.held_out.positions([index]).coords.get(f"{task.time_dim}_label")
    begin = "" if labels is None else f" of {show_label(labels.values[0])}"
    states = {"Truth": truth, "Forecast": forecast}
    errors = {}
    for title, guess in (("Forecast", forecast), ("Persistence", persistence)):
        rmse = np.sqrt(np.nansum(cells * np.square(guess - truth)) / cells.sum())
        errors[f"{title} minus truth: RMSE {rmse:.3g} {units}".rstrip()] = guess - truth
    low, high = np.nanpercentile(np.stack([truth, forecast]), [0.5, 99.5])
    edge = np.nanpercentile(np.abs(persistence - truth), 99.5) or 1.0
    rows, columns = (axis_of(dim, dim, task.mean) for dim in task.grid)
    with mpl.rc_context({"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"}):
        figure = new_picture(11, 6.6)
        title = f"{attrs.get('long_name', name)} ({name}), {task.lead_text} ahead{begin}"
        figure.suptitle(title, fontsize=12)
        above, below = figure.subplots(2, 2, sharex=True, sharey=True)
        for panels, maps, colours, ends in (
            (above, states, "viridis", (low, high)),
            (below, errors, "RdBu_r", (-edge, edge)),
        ):
            for axes, (title, values) in zip(panels, maps.items(), strict=True):
                mesh = draw_map(axes, columns, rows, values, colours, *ends)
                axes.set_title(title)
            figure.colorbar(mesh, ax=list(panels), extend="both", label=units, aspect=22, pad=0.01)
        figure.supxlabel(columns.label)
        figure.supylabel(rows.label)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, format="png")
