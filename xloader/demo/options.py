"""The options of ``xloader demo``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from xloader.demo.waves import WaveSpec

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
