"""Masks and scores of samples on disk, by fingerprint: computed once for a store, then found.

A file has one line of JSON, then the values. A file that is damaged, or of another version, is as
if it were absent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from xloader.errors import OptionError
from xloader.jobs.kept_result import path_here
from xloader.recipe.recipe import Recipe
from xloader.sources.stores.bounded_reads import local_path
from xloader.sources.stores.write_places import whole_file


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


Cache = str | os.PathLike[str] | Literal[False] | None
"""Folder in which files are kept; None for the user's cache folder, False for none."""

_VERSION: Final = 1
_MOST_NBYTES: Final = 1 << 30
"""Bytes of all files of a kind in a folder. Beyond it, those used longest ago are removed."""

_MOST_HEAD: Final = 1 << 12

_LOG: Final = logging.getLogger("xloader")


@dataclass(frozen=True)
class CacheFile:
    """The file of one mask, or of the scores of one function."""

    folder: Path
    kind: Literal["mask", "scores"]
    fingerprint: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / f"{self.fingerprint}.{self.kind}"

    def load(self, nbytes: int) -> bytes | None:
        """The values, or None if there is no such file, or not an undamaged one of that size."""
        try:
            with open(self.path, "rb") as file:
                head = json.loads(file.readline(_MOST_HEAD))
                if head != self._head(nbytes, head["sha256"]):
                    return None
                # Reading one byte more finds a file that is too long.
                body = file.read(nbytes + 1)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if len(body) != nbytes or hashlib.sha256(body).hexdigest() != head["sha256"]:
            return None
        with suppress(OSError):
            # The time of its latest use, for `_make_room`.
            os.utime(self.path)
        return body

    def save(self, body: bytes) -> None:
        """Write the file at one stroke. A folder that cannot be written to is left as it is."""
        head = self._head(len(body), hashlib.sha256(body).hexdigest())
        if len(body) > _MOST_NBYTES:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(len(body))
            with whole_file(self.path) as file:
                file.write(json.dumps(head).encode() + b"\n" + body)
        except OSError as error:
            _LOG.warning("%s is not kept, and will be computed again: %s", self.path, error)

    def _head(self, nbytes: int, sha256: str) -> dict[str, object]:
        return {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "nbytes": nbytes,
            "sha256": sha256,
        }

    def _make_room(self, nbytes: int) -> None:
        for left in self.folder.glob("*.part*"):
            # Nobody writes a mask for a day.
            if left.stat().st_mtime < time.time() - 86_400:
                left.unlink(missing_ok=True)
        files = sorted(
            (stat.st_mtime_ns, stat.st_size, path)
            for path in self.folder.glob(f"*.{self.kind}")
            for stat in [path.stat()]
        )
        total = nbytes + sum(size for _, size, _ in files)
        for _, size, path in files:
            if total <= _MOST_NBYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def cache_file(
    recipe: Recipe,
    kind: Literal["mask", "scores"],
    cache: Cache,
    variables: Iterable[str],
    key: object,
) -> CacheFile | None:
    """The file for something that is computed for each sample of a recipe.

    `cache`: folder of the files; None for the user's cache folder, False for no file.
    """
    if cache is False:
        return None
    folder = path_here(
        default_cache_dir() / f"{kind.removesuffix('s')}s" if cache is None else cache
    )
    if folder is None:
        raise OptionError(
            "cache is not a folder",
            given=repr(cache),
            remedy="pass a path, False for no cache, or leave it out for the user's cache folder",
        )
    names = tuple(sorted(variables))
    # A function may change, and a fingerprint holds its name only.
    if not names or any(recipe.variable(name).is_computed for name in names):
        return None
    stamp = stamp_of_files(recipe.source.name, names)
    if cache is None and stamp is None:
        # Nothing would show that values changed, and those of other data would be wrong.
        return None
    parts = (recipe.fingerprint, recipe.source.name, key, stamp)
    return CacheFile(folder, kind, hashlib.sha256(repr(parts).encode()).hexdigest())


def stamp_of_files(name: str, variables: tuple[str, ...]) -> str | None:
    """A hash of names, sizes and modification times of all files of a source on this machine.

    None if the source is not a file or folder of this machine.
    """
    name = local_path(name)
    if not os.path.isabs(name) or not os.path.exists(name):
        return None
    digest = hashlib.sha256(name.encode())
    roots = [os.path.join(name, variable) for variable in variables]
    if not all(map(os.path.isdir, roots)):
        roots = [name]
    for root in roots:
        if os.path.isfile(root):
            _add_stamp(digest, root)
        for folder, folders, files in os.walk(root):
            folders.sort()
            for file in sorted(files):
                _add_stamp(digest, os.path.join(folder, file))
    return digest.hexdigest()


def _add_stamp(digest: hashlib._Hash, path: str) -> None:
    with suppress(OSError):
        stat = os.stat(path)
        digest.update(f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}\n".encode())
