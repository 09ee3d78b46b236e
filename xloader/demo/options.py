"""What ``xloader demo`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from xloader.demo.waves import WaveSpec

# Less than half of the demo's own store, so that there is something to plan.
OWN_MEMORY = "128MiB"
USER_MEMORY = "1GiB"

STEPS_LOG = "steps.jsonl"
"""Where ranks that can be restarted log their steps, in their folder."""


@dataclass(frozen=True)
class DemoOptions:
    """What ``xloader demo`` can be told.

    Parameters
    ----------
    store : str, optional
        A store or file of the user's; by default the demo makes one of its own.
    variables : tuple of str, optional
        Variables to forecast; by default every float map over time.
    time_dim : str, optional
        The dimension along which is forecast.
    lead : int, optional
        Steps ahead.
    batch_size : int, optional
        Samples a batch.
    memory : str, optional
        The loader's budget, such as ``"512MiB"``; by default 128 MiB for the demo's own store
        and 1 GiB for a user's.
    steps : int, optional
        Batches to train on.
    seconds : float, optional
        Wall time after which training ends all the same.
    plain_seconds : float, optional
        Wall time for the comparison with a plain dataset.
    seed : int, optional
        Seed of the shuffle and of the network.
    picture : pathlib.Path, optional
        Where the PNG goes.
    cache : pathlib.Path, optional
        Folder of the demo's own store; by default the platform's cache.
    spec : WaveSpec, optional
        Size of the demo's own store.
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
        """The loader's budget: as asked, or the default for the kind of store."""
        return self.memory or (USER_MEMORY if self.store else OWN_MEMORY)
