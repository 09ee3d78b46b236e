"""Compiles the gather while xloader is built, if there is a C compiler.

Without one the build succeeds too: rows are then gathered with NumPy. The library uses nothing of
Python's own interface, so one file serves every release of Python.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

FOLDER = Path("xloader", "engine")
SOURCE, LIBRARY = "gather_rows.c", "_gather_rows.so"
FLAGS = ("-std=c99", "-O3", "-shared", "-fPIC", "-fvisibility=hidden")


class CompiledGather(BuildHookInterface):
    """The hook that hatchling calls before it builds a wheel, an editable one too."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library, and name the wheel after this kind of machine."""
        if self.target_name != "wheel":
            return
        library = Path(self.root, FOLDER, LIBRARY)
        library.unlink(missing_ok=True)
        if os.environ.get("XLOADER_COMPILED") == "0":
            return
        if reason := compile_library(Path(self.root, FOLDER, SOURCE), library):
            self.app.display_warning(f"xloader is built without its compiled gather: {reason}")
            return
        build_data["pure_python"] = False
        build_data["artifacts"].append(str(FOLDER / LIBRARY))
        tags = list(platform_tags())
        build_data["tag"] = f"py3-none-{next((t for t in tags if t.startswith('linux_')), tags[0])}"


def compile_library(source: Path, library: Path) -> str:
    """Compile a C file to a shared library; return why that failed, or an empty text."""
    if platform.system() == "Windows":
        return "it is compiled on Linux and macOS only"
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    if not compiler:
        return "no C compiler was found"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, library.name)
        command = [*shlex.split(compiler), *FLAGS, "-o", str(made), str(source)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except OSError as error:
            return str(error)
        except subprocess.CalledProcessError as error:
            return f"{shlex.join(command)} failed: {error.stderr.strip()}"
        # Renamed whole, so that no process loads half a file.
        made.replace(library)
    return ""
