"""The folder in which xloader keeps files that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def default_cache_dir() -> Path:
    r"""The user's cache folder for xloader on this platform."""
    explicit = os.environ.get("XDG_CACHE_HOME")
    if explicit:
        return Path(explicit) / "xloader"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "xloader"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "xloader"
    return Path.home() / ".cache" / "xloader"
