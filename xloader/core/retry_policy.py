"""Time limit of each attempt at a read, and number of attempts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

from xloader.core.option_checks import check_whole, is_number
from xloader.errors import OptionError

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_LONGEST_TIMEOUT: Final = 10**7
"""Largest ``read_timeout`` in seconds; some systems cannot wait for a lock much longer."""


@dataclass(frozen=True)
class RetryPolicy:
    """Time limit of each attempt at a read, number of attempts, and pauses between them.

    `read_timeout`: seconds that one attempt at a read may take, above 0 and up to 10**7.
    """

    read_timeout: float = 300.0
    max_retries: int = 4

    def __post_init__(self) -> None:
        seconds: Any = self.read_timeout
        if not (is_number(seconds) and 0 < seconds <= _LONGEST_TIMEOUT):
            raise OptionError(
                "read_timeout is not a valid number of seconds",
                given=repr(seconds),
                allowed=f"numbers above 0, up to {_LONGEST_TIMEOUT}",
                remedy="pass the seconds that one attempt at a read may take, such as 300.0",
            )
        object.__setattr__(self, "read_timeout", float(seconds))
        object.__setattr__(
            self, "max_retries", check_whole("max_retries", self.max_retries, 0, 1000)
        )

    def pause_after(self, num_failed: int) -> float:
        """Longest pause in seconds before the next attempt, after ``num_failed`` failed ones."""
        return min(math.ldexp(_FIRST_PAUSE, num_failed - 1), _LONGEST_PAUSE)
