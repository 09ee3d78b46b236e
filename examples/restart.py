"""Check that a training killed on two ranks continues on one rank with the same batches.

::

    python -m examples.restart

runs two trainings under torchrun. One runs to its end on two ranks. The other is killed in the
middle of an epoch and restarted on one rank. The command prints the steps of both: their global
batches are the same, and their losses are the same but for rounding.
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

from examples.ranked import STEPS_LOG
from xloader.core.messages import require_libraries
from xloader.errors import XloaderError
from xloader.jobs.valid.cache_files import default_cache_dir
from xloader.testing.waves import WaveSpec, ensure_store, store_path

_SPEC = WaveSpec(num_steps=320, num_lats=36, num_lons=72)
_ROUNDING = 1e-4
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class LoggedStep:
    """One step of a training, as logged."""

    epoch: int
    step: int
    ids: str
    loss: float
    ranks: int


@dataclass(frozen=True)
class Comparison:
    """The steps of an undisturbed training, and of one that was killed and restarted."""

    whole: tuple[LoggedStep, ...]
    killed: tuple[LoggedStep, ...]
    restarted: tuple[LoggedStep, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the steps up to the checkpoint and those after the restart leave none out."""
        places = [(step.epoch, step.step) for step in self.whole]
        first = len(places) - len(self.restarted)
        found = [(step.epoch, step.step) for step in self.killed[:first] + self.restarted]
        return bool(self.killed and self.restarted) and found == places

    @property
    def is_same_batches(self) -> bool:
        """Whether each step has the same global batch as in the undisturbed training."""
        ids = {(step.epoch, step.step): step.ids for step in self.whole}
        return all(ids[step.epoch, step.step] == step.ids for step in self._others())

    @property
    def loss_difference(self) -> float:
        """The largest relative difference between the two trainings' losses of a step."""
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
    """Train undisturbed on two ranks, then again with a kill and a restart on one rank."""
    store = store_path(default_cache_dir(), spec)
    ensure_store(store, spec)
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
    """Run a training under torchrun and wait for its end."""
    launch = ["torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command = [sys.executable, "-m", *launch, "-m", "examples.ranked", *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    # All ranks share the cores of one machine, so each computes on one thread.
    environ.setdefault("OMP_NUM_THREADS", "1")
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    was_killed = "SIGKILL" in done.stderr
    if was_killed != is_killed or (done.returncode != 0) != is_killed:
        raise XloaderError(
            "a training under torchrun did not end as expected",
            given=f"exit status {done.returncode}, and at its end\n{done.stderr[-4000:]}",
            allowed="a rank that is killed" if is_killed else "exit status 0",
        )


def _read(folder: Path) -> tuple[LoggedStep, ...]:
    """The steps in the log of a folder."""
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
    """Kill a training on two ranks, restart it on one, and compare with an undisturbed one."""
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
