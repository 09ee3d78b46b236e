"""RMSE of a forecast, of persistence and of climatology, summed over batches and tabulated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.core.text_table import align_columns
from xloader.demo.climate import Climate


@dataclass(frozen=True)
class Score:
    """Root mean squared errors of one variable, or of all variables normalised."""

    name: str
    units: str
    forecast: float
    persistence: float
    climatology: float

    @property
    def gain(self) -> float:
        """Reduction of the RMSE against persistence, as a share: 0.3 is 30 %."""
        return 1 - self.forecast / self.persistence if self.persistence else 0.0


class ErrorSums:
    """Squared errors, summed over batches of maps."""

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._weights = weights
        self._sums: dict[str, NDArray[np.float64]] = {}
        self.num_samples = 0

    def add(self, truth: NDArray[np.float32], **guesses: NDArray[np.float32]) -> None:
        """Add the squared errors of a batch."""
        for name, guess in guesses.items():
            errors = np.square(guess - truth, dtype=np.float64).sum(axis=0)
            sums = (errors * self._weights).sum(axis=(1, 2))
            self._sums[name] = self._sums.get(name, 0.0) + sums
        self.num_samples += len(truth)

    def mean_squares(self) -> dict[str, NDArray[np.float64]]:
        """Weighted mean squared error of each channel, float64 (channel,), by method."""
        total = self.num_samples * self._weights.sum(axis=(1, 2))
        return {name: sums / total for name, sums in self._sums.items()}


def make_scores(sums: ErrorSums, climate: Climate, units: dict[str, str]) -> tuple[Score, ...]:
    """The scores of each variable, and of all variables together."""
    squares = sums.mean_squares()
    names = np.array(climate.channel_variables)
    scores = [
        Score(
            name,
            units[name],
            **{k: float(v[names == name].mean() ** 0.5) for k, v in squares.items()},
        )
        for name in climate.mean
    ]
    overall = {k: float(np.mean(v / climate.spread**2) ** 0.5) for k, v in squares.items()}
    return (*scores, Score("all, normalised", "", **overall))


def format_scores(scores: tuple[Score, ...]) -> str:
    """The scores as a table of text."""
    head = ("variable", "units", "forecast", "persistence", "climatology", "gain on persistence")
    rows = [
        (
            s.name,
            s.units,
            *(f"{value:.3g}" for value in (s.forecast, s.persistence, s.climatology)),
            f"{100 * s.gain:.0f} %",
        )
        for s in scores
    ]
    return align_columns((head, *rows), num_left=2)
