"""Masks of samples on disk, by fingerprint: computed once for a store, then found.

A file has one line of JSON, then the bits. A file that is damaged, or of another version, is as if
it were absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import numpy as np

from xloader.core.window_sets import WindowBits

_VERSION: Final = 1
_MOST_NBYTES: Final = 1 << 30
"""Bytes of all masks in a folder. Beyond it, those that were used longest ago are removed."""

_MOST_HEAD: Final = 1 << 12


@dataclass(frozen=True)
class MaskFile:
    """The file of one mask.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the masks. It need not exist.
    fingerprint : str
        Hash of everything that fixes the mask, in hexadecimal digits.
    """

    folder: Path
    fingerprint: str

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self.folder / f"{self.fingerprint}.mask"

    def load(self, size: int) -> WindowBits | None:
        """The bits, or None if there is no such file, or not an undamaged one for ``size`` bits."""
        try:
            with open(self.path, "rb") as file:
                head = json.loads(file.readline(_MOST_HEAD))
                if head != self._head(size, head["sha256"]):
                    return None
                # Reading one byte more finds a file that is too long.
                body = file.read(8 * (size // 64 + 1) + 1)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if len(body) % 8 or hashlib.sha256(body).hexdigest() != head["sha256"]:
            return None
        with suppress(OSError):
            # The time of its latest use, for `_make_room`.
            os.utime(self.path)
        return WindowBits(size, np.frombuffer(body, "<u8"))

    def save(self, bits: WindowBits) -> None:
        """Write the file at one stroke. A folder that cannot be written to is left as it is."""
        body = bits.words.tobytes()
        head = self._head(bits.size, hashlib.sha256(body).hexdigest())
        if len(body) > _MOST_NBYTES:
            return
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(len(body))
            handle, name = tempfile.mkstemp(".part", self.fingerprint, self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(json.dumps(head).encode() + b"\n" + body)
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise

    def _head(self, size: int, sha256: str) -> dict[str, object]:
        return {
            "version": _VERSION,
            "fingerprint": self.fingerprint,
            "size": size,
            "sha256": sha256,
        }

    def _make_room(self, nbytes: int) -> None:
        found = sorted(
            (stat.st_mtime_ns, stat.st_size, path)
            for path in self.folder.glob("*.mask")
            for stat in [path.stat()]
        )
        total = nbytes + sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= _MOST_NBYTES:
                return
            path.unlink(missing_ok=True)
            total -= size


def stamp_of_files(name: str, variables: tuple[str, ...]) -> str | None:
    """A hash of names, sizes and modification times of all files of a source on this machine.

    Parameters
    ----------
    name : str
        Name of the source: a path or a ``file://`` URL where it is made of files.
    variables : tuple of str
        The variables that count. If each has a folder, other folders are left out.

    Returns
    -------
    str or None
        None if the source is not a file or folder of this machine. Then nothing cheap shows whether
        its values changed.

    Examples
    --------
    >>> stamp_of_files("an open Dataset", ("t2m",)) is None
    True
    """
    if name.startswith("file://"):
        name = unquote(urlsplit(name).path)
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
        found = os.stat(path)
        digest.update(f"{path}\0{found.st_mtime_ns}\0{found.st_size}\n".encode())
