"""A training is killed in the midst of an epoch on two ranks, and goes on with one.

::

    python -m xloader.demo.restart

trains twice under torchrun, once without being disturbed, and shows the steps of both: their
global batches are the same, and their losses are the same but for rounding.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from xloader.core.libraries import require_libraries
from xloader.demo.options import STEPS_LOG
from xloader.demo.store import default_cache_dir, ensure_store
from xloader.demo.waves import WaveSpec
from xloader.errors import XloaderError

_SPEC = WaveSpec(num_steps=320, num_lats=37, num_lons=72)
_ROUNDING = 1e-4
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class LoggedStep:
    """What the log says of a step.

    Parameters
    ----------
    epoch, step : int
        Counted from 0.
    ids : str
        Hash of the ids of the global batch, in order.
    loss : float
        Of the global batch.
    ranks : int
        Processes that trained on it.
    """

    epoch: int
    step: int
    ids: str
    loss: float
    ranks: int


@dataclass(frozen=True)
class Comparison:
    """An undisturbed training beside one that was killed.

    Parameters
    ----------
    whole : tuple of LoggedStep
        Of the undisturbed one.
    killed, restarted : tuple of LoggedStep
        Of the other, before and after. Steps since the last checkpoint are in both.
    """

    whole: tuple[LoggedStep, ...]
    killed: tuple[LoggedStep, ...]
    restarted: tuple[LoggedStep, ...]

    @property
    def is_complete(self) -> bool:
        """Whether nothing was left out: what follows the checkpoint follows what it holds."""
        places = [(step.epoch, step.step) for step in self.whole]
        first = len(places) - len(self.restarted)
        found = [(step.epoch, step.step) for step in self.killed[:first] + self.restarted]
        return bool(self.killed and self.restarted) and found == places

    @property
    def is_same_batches(self) -> bool:
        """Whether each step had the global batch that it has in the undisturbed training."""
        ids = {(step.epoch, step.step): step.ids for step in self.whole}
        return all(ids[step.epoch, step.step] == step.ids for step in self._others())

    @property
    def loss_difference(self) -> float:
        """The largest relative difference of the losses of a step."""
        losses = {(step.epoch, step.step): step.loss for step in self.whole}
        return max(abs(step.loss / losses[step.epoch, step.step] - 1.0) for step in self._others())

    def __str__(self) -> str:
        killed = {(step.epoch, step.step): step for step in self.killed}
        restarted = {(step.epoch, step.step): step for step in self.restarted}
        lines = ["epoch step  ids of the batch   loss      2 ranks, killed   then 1 rank"]
        for step in self.whole:
            others = [part.get((step.epoch, step.step)) for part in (killed, restarted)]
            shown = ["-" if other is None else f"{other.loss:.6f}" for other in others]
            lines.append(
                f"{step.epoch:>5} {step.step:>4}  {step.ids}     {step.loss:.6f}  "
                f"{shown[0]:<16}  {shown[1]}"
            )
        return "\n".join(lines)

    def _others(self) -> tuple[LoggedStep, ...]:
        return self.killed + self.restarted


def compare(folder: Path, spec: WaveSpec, *, epochs: int, every: int, kill_at: int) -> Comparison:
    """Train undisturbed, killed and restarted.

    Parameters
    ----------
    folder : pathlib.Path
        For checkpoints and logs; what earlier comparisons left there is removed.
    spec : WaveSpec
        Size of the store, which is kept in the cache.
    epochs : int
        Passes.
    every : int
        Steps from one checkpoint to the next.
    kill_at : int
        The step, counted over all epochs, before which a rank is killed.

    Returns
    -------
    Comparison

    Raises
    ------
    XloaderError
        A training ended otherwise than it should, with what it said.
    """
    store = ensure_store(default_cache_dir(), spec)
    whole, cut = folder / "whole", folder / "cut"
    for part in (whole, cut):
        shutil.rmtree(part, ignore_errors=True)
    options = (f"--epochs={epochs}", f"--every={every}")
    _launch(2, store, whole, *options)
    _launch(2, store, cut, *options, f"--kill-at={kill_at}", is_killed=True)
    killed = _read(cut)
    (cut / STEPS_LOG).unlink()
    _launch(1, store, cut, *options)
    return Comparison(_read(whole), killed, _read(cut))


def _launch(num_ranks: int, *arguments: object, is_killed: bool = False) -> None:
    """Run a training under torchrun to its end."""
    launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [sys.executable, "-m", *launch, "-m", "xloader.demo.ranked", *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    # All ranks share the cores of one machine here.
    environ.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    was_killed = "SIGKILL" in done.stderr
    if was_killed != is_killed or (done.returncode != 0) != is_killed:
        raise XloaderError(
            "a training under torchrun ended otherwise than it should",
            given=f"exit status {done.returncode}, and at its end\n{done.stderr[-4000:]}",
            allowed="a rank that is killed" if is_killed else "exit status 0",
        )


def _read(folder: Path) -> tuple[LoggedStep, ...]:
    lines = (folder / STEPS_LOG).read_text("utf-8").splitlines()
    return tuple(LoggedStep(**json.loads(line)) for line in lines)


@click.command()
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("xloader-restart"),
    show_default=True,
    help="For checkpoints and logs.",
)
@click.option("--epochs", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--every", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--kill-at", type=click.IntRange(min=1), default=22, show_default=True)
def main(folder: Path, epochs: int, every: int, kill_at: int) -> None:
    """Kill a training on two ranks, go on with one, and compare with an undisturbed one."""
    print(f"Training three times under torchrun; checkpoints every {every} steps", flush=True)
    try:
        require_libraries(("torch",))
        found = compare(folder, _SPEC, epochs=epochs, every=every, kill_at=kill_at)
    except XloaderError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    print(found)
    print(
        f"\nGlobal batches: {'the same' if found.is_same_batches else 'DIFFERENT'} at every step"
        f"\nLosses: the same to {found.loss_difference:.0e}"
    )
    is_good = found.is_complete and found.is_same_batches and found.loss_difference < _ROUNDING
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
