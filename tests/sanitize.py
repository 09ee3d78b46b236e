"""Carries out programs in C alone, under sanitizers: ``make sanitize``.

A program is saved from a loader, and `native/drive_program.c` carries it out again and again: with
several threads, with chunks that cannot be read, and with a close in the middle. Then it changes
numbers of the tables, which must be refused or do no harm.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import numpy as np
import xarray as xr
from zarr.storage import LocalStore

import xloader
from tests.saved_programs import save_program
from xloader.compiled.library import FOLDER
from xloader.testing import LatencyStore

DRIVER: Final = Path(__file__).parent / "native" / "drive_program.c"

SANITIZERS: Final = ("address,undefined", "thread")


def write_store(folder: Path) -> Path:
    """Write variables of several kinds: in files and shards, with edge chunks, not compressed."""
    rng = np.random.default_rng(0)
    sizes = {"time": 40, "level": 3, "y": 22, "x": 34}

    def make(dtype: str, *dims: str) -> xr.Variable:
        return xr.Variable(dims, rng.standard_normal([sizes[d] for d in dims]).astype(dtype))

    ds = xr.Dataset(
        {
            "a": make("f4", "time", "y", "x"),
            "b": make("f4", "time", "y", "x"),
            "levels": make("f8", "time", "level", "y", "x"),
            "heights": make("f4", "y", "x"),
        }
    )
    encoding = {
        "a": {"chunks": (8, 10, 10)},
        "b": {"chunks": (8, 10, 10)},
        "levels": {"chunks": (4, 1, 10, 10), "shards": (8, 3, 20, 20)},
        "heights": {"chunks": (22, 34)},
    }
    for own in encoding.values():
        own["compressors"] = None
    path = folder / "store.zarr"
    ds.to_zarr(path, encoding=encoding, zarr_format=3, consolidated=False)
    return path


def save(store: Path | LatencyStore, memory: str, path: Path) -> None:
    """Save the program of an epoch of patches that straddle chunks."""
    window, stride = {"time": 1, "y": 8, "x": 8}, {"time": 1, "y": 5, "x": 5}
    samples = xloader.open(store).window(window, stride=stride)
    options = {"batch_size": 12, "shuffle": True, "seed": 1, "output": "numpy"}
    with samples.loader(**options, memory=memory, threads=2, on_nan="ignore") as loader:
        iter(loader)
        run = loader._run
        assert run is not None
        job, segments = run._job, []
        while not job.program.is_over:
            segments.append(job.program.next_segment(lambda index: index % 5 == 0))
        batch_nbytes = job.parts.fields.memory.nbytes_of(1)
        save_program(
            path,
            job.tables,
            segments,
            capacity=job.blocks.capacity,
            num_slots=job.num_ahead + 2,
            options=(batch_nbytes, 1 << 20, 1 << 14, 2, 1, 4, 1, 2),
        )


def find_compiler() -> str:
    """The C compiler."""
    return os.environ.get("CC") or next(filter(shutil.which, ("gcc", "clang", "cc")), "cc")


def is_there(folder: Path, sanitizer: str) -> bool:
    """Whether the compiler has a sanitizer that runs on this machine; say so if not."""
    source, program = folder / "empty.c", folder / "empty"
    source.write_text("int main(void) { return 0; }")
    command = [find_compiler(), f"-fsanitize={sanitizer}", "-o", str(program), str(source)]
    for words in (command, [str(program)]):
        try:
            subprocess.run(words, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.stdout.write(f"{sanitizer}: left out, as this machine has none ({error})\n")
            return False
    return True


def compile_driver(folder: Path, sanitizer: str) -> Path:
    """Compile the driver with all C files of the library."""
    compiler = find_compiler()
    driver = folder / f"drive-{sanitizer.partition(',')[0]}"
    flags = ("-std=gnu11", "-g", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={sanitizer}")
    sources = map(str, sorted(FOLDER.glob("*.c")))
    command = [compiler, *flags, "-pthread", "-DSOURCE_HASH=1", "-o", str(driver), str(DRIVER)]
    subprocess.run([*command, *sources], check=True)
    return driver


def drive(driver: Path, program: Path, mode: str, seconds: int) -> None:
    """Carry out a program, and raise if a sanitizer finds anything."""
    environ = {**os.environ, "UBSAN_OPTIONS": "halt_on_error=1", "TSAN_OPTIONS": "halt_on_error=1"}
    sys.stdout.write(f"{driver.name}, {program.name}, {mode}: ")
    sys.stdout.flush()
    subprocess.run([str(driver), str(program), mode, str(seconds)], check=True, env=environ)


def main() -> None:
    """Carry out the programs, as long as asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize")
    parser.add_argument("--seconds", type=int, default=60, help="of changed tables; default 60")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = write_store(folder)
        programs = []
        far = LatencyStore(LocalStore(store, read_only=True), 0.001)
        for name, own, memory in (
            ("large", store, "2MB"),
            ("small", store, "700kB"),
            ("far", far, "700kB"),
        ):
            programs.append(folder / f"program-{name}")
            save(own, memory, programs[-1])
        there = [sanitizer for sanitizer in SANITIZERS if is_there(folder, sanitizer)]
        drivers = [compile_driver(folder, sanitizer) for sanitizer in there]
        for driver in drivers:
            for program in programs:
                drive(driver, program, "run", max(1, seconds // 10))
        # Where Python fetches ahead, a changed program waits for what never comes.
        for driver in drivers[:1]:
            for program in programs[:-1]:
                drive(driver, program, "fuzz", max(1, seconds // 2))


if __name__ == "__main__":
    sys.exit(main())
