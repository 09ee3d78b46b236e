"""RMSE of a forecast beside those of persistence and of climatology."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xloader.demo.climate import Climate


@dataclass(frozen=True)
class Score:
    """Root mean squared errors of one variable, or of all of them normalised.

    Parameters
    ----------
    name, units : str
        The variable and its units.
    forecast, persistence, climatology : float
        RMSE of the network, of "nothing changes" and of the training part's mean.
    """

    name: str
    units: str
    forecast: float
    persistence: float
    climatology: float

    @property
    def gain(self) -> float:
        """Share of persistence's RMSE that the forecast saves; 0.3 is 30 %."""
        return 1 - self.forecast / self.persistence if self.persistence else 0.0


class ErrorSums:
    """Squared errors, summed over batches of maps.

    Parameters
    ----------
    weights : numpy.ndarray
        Weight of every grid point, 0 where it is not scored, shape (channel, row, column).
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._weights = weights
        self._sums: dict[str, NDArray[np.float64]] = {}
        self.num_samples = 0

    def add(self, truth: NDArray[np.float32], **guesses: NDArray[np.float32]) -> None:
        """Add a batch.

        Parameters
        ----------
        truth : numpy.ndarray
            Shape (sample, channel, row, column), in the variables' units.
        **guesses : numpy.ndarray
            One array by name of each way to forecast, of the same shape.
        """
        for name, guess in guesses.items():
            errors = np.square(guess - truth, dtype=np.float64).sum(axis=0)
            sums = (errors * self._weights).sum(axis=(1, 2))
            self._sums[name] = self._sums.get(name, 0.0) + sums
        self.num_samples += len(truth)

    def mean_squares(self) -> dict[str, NDArray[np.float64]]:
        """Weighted mean squared error of each channel, by name of the guess."""
        total = self.num_samples * self._weights.sum(axis=(1, 2))
        return {name: sums / total for name, sums in self._sums.items()}


def make_scores(sums: ErrorSums, climate: Climate, units: dict[str, str]) -> tuple[Score, ...]:
    """One score a variable, and one of all, in units of each channel's spread in time.

    Parameters
    ----------
    sums : ErrorSums
        Errors of ``forecast``, ``persistence`` and ``climatology``.
    climate : Climate
        Says which variable a channel belongs to and how much it varies.
    units : dict of str to str
        Units of the variables.

    Returns
    -------
    tuple of Score
        The variables in order, then ``all, normalised`` where there are several.
    """
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
    """The scores as a table of text.

    Examples
    --------
    >>> print(format_scores((Score("t2m", "K", 1.5, 3.0, 2.0),)))
    variable   units   forecast   persistence   climatology   gain on persistence
    t2m        K            1.5             3             2                  50 %
    """
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
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "   ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)
