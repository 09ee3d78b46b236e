"""The shell completes commands, options and paths, as the reference says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import get_completion_class

from xloader import cli


def complete(shell: str, line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the shell is told about the last word of a line."""
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(cli.main, {}, "xloader", "_XLOADER_COMPLETE").complete()


def test_commands_options_and_paths_are_completed(monkeypatch):
    assert complete("bash", "xloader ins", monkeypatch) == "plain,inspect"
    assert complete("bash", "xloader explain --comp", monkeypatch) == "plain,--compare"
    assert complete("zsh", "xloader explain era", monkeypatch) == "file\nera\n_"
    told = complete("zsh", "xloader mat", monkeypatch).splitlines()
    assert told[:2] == ["plain", "materialize"]
    assert told[2] == "Write a store with chunks that suit it."


def test_bash_takes_the_script(tmp_path):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    command = tmp_path / "xloader"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m xloader "$@"\n')
    command.chmod(0o755)
    # The function that bash calls at a press of the tabulator.
    script = (
        'eval "$(_XLOADER_COMPLETE=bash_source xloader)"; COMP_WORDS=(xloader expl); COMP_CWORD=1; '
        '_xloader_completion xloader; echo "${COMPREPLY[@]}"'
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == "explain\n"
