"""The command as a module, whose output nobody reads."""

from __future__ import annotations

import subprocess
import sys


def test_a_reader_that_has_gone_is_no_error():
    with subprocess.Popen(
        [sys.executable, "-m", "xloader", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
