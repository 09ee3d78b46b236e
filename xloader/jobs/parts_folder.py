"""The folder beside a target in which parts of its result wait until they are merged.

::

    stats.nc.parts/
        form/stats.json                what the whole is, as all parts must know it
        form/labels.zarr/              its coordinates
        parts/3f2a9c51-000000.part     results of some units of the work
        parts/...

Files are added, and none is changed. So a process that is killed leaves whole files only, and those
of several machines do not meet. The target appears at one stroke, and then the folder goes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from xloader.errors import OptionError, StateError
from xloader.sources.stores.write_places import (
    check_replaceable,
    remove_folder,
    remove_partial,
    replace_folder,
    whole_file,
    whole_folder,
    writing,
)

T = TypeVar("T")


class PartsFolder:
    """The folder of parts of a target. Nothing is made before `begin`.

    `kind`: "stats" or "mosaic", which names the form.
    """

    def __init__(self, target: Path, kind: str) -> None:
        if not target.name:
            raise OptionError(
                "the target has no name of its own",
                given=repr(str(target)),
                remedy='name it, as in "forecast.zarr"',
            )
        self.target = target
        self.path = target.with_name(target.name + ".parts")
        self.form = self.path / "form" / f"{kind}.json"
        self.labels = self.form.with_name("labels.zarr")
        # Files of one run never meet those of another.
        self._token = uuid.uuid4().hex[:8]
        self._num_files = 0

    def has_begun(self) -> bool:
        """Whether parts of this kind wait beside the target."""
        return self.form.is_file()

    def check_is_ours(self) -> None:
        """Refuse a folder that holds something else."""
        strange = [path.name for path in self.path.glob("*") if path.suffix != ".partial"]
        # Another process may just have begun here, or have ended and removed the folder.
        if strange and not self.has_begun() and self.path.exists():
            raise StateError(
                f"{self.path} holds something else than parts of this result",
                given=", ".join(sorted(strange)[:3]),
                remedy="choose another path; or remove the folder, which an earlier version of "
                "xloader may have made",
            )

    def begin(self, form: str, write_labels: Callable[[Path], object]) -> None:
        """Make the folder. Nothing is removed: another process may begin at the same time."""
        with whole_folder(self.form.parent, self.form.name) as made:
            (made / self.form.name).write_text(form, "utf-8")
            write_labels(made / self.labels.name)

    @contextmanager
    def new_file(self) -> Iterator[BinaryIO]:
        """Open a new file of parts, which appears at one stroke."""
        path = self.path / "parts" / f"{self._token}-{self._num_files:06d}.part"
        with writing(self.path):
            path.parent.mkdir(exist_ok=True)
        with whole_file(path) as file:
            yield file
        self._num_files += 1

    def files(self) -> list[Path]:
        """The files of all processes, by name."""
        return sorted(self.path.glob("parts/*.part"))

    def write_target(self, write: Callable[[Path], T], *, replaces: bool) -> T:
        """Write the whole result at a path, and move it to the target at one stroke.

        `replaces`: whether it may take the place of a folder.
        """
        # In the folder that is removed afterwards, so that a killed process leaves nothing else.
        made = self.path / f"{uuid.uuid4().hex[:8]}.merging{self.target.suffix}"
        begun = os.stat(self.form)
        try:
            result = write(made)
            # Another process may have removed it meanwhile, and zarr makes folders anew.
            now = os.stat(self.form)
            if (now.st_ino, now.st_mtime_ns) != (begun.st_ino, begun.st_mtime_ns):
                raise FileNotFoundError(f"{self.path} was begun anew by another process")
            if replaces and (made.is_dir() or self.target.is_dir()):
                check_replaceable(self.target)
                replace_folder(made, self.target)
            else:
                os.replace(made, self.target)
        except BaseException:
            remove_partial(made)
            raise
        return result

    def remove(self) -> None:
        """Remove the folder, at one stroke, and what killed processes had begun to remove."""
        remove_folder(self.path)
