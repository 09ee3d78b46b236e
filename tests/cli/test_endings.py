"""Commands end with a code, and with plain lines in place of tracebacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings

import click
import click.testing
import pytest

from xloader.cli.endings import end_incomplete, plain_endings
from xloader.errors import OptionError, PlanWarning


def run(body, *arguments):
    @click.command()
    def command():
        with plain_endings("Run it again."):
            body()

    return click.testing.CliRunner().invoke(command, arguments)


def fail():
    raise OptionError("the part is wrong", given="9/8", remedy="count from 0")


def interrupt():
    raise KeyboardInterrupt


def warn():
    # The tests turn warnings into errors.
    warnings.simplefilter("always")
    warnings.warn("batches come from few places", PlanWarning, stacklevel=1)
    click.echo("done")


@pytest.mark.parametrize(
    ("body", "code", "stderr", "stdout"),
    [
        (fail, 2, "Error: the part is wrong. Given: 9/8. To mend it: count from 0.\n", ""),
        (interrupt, 130, "Interrupted. Run it again.\n", ""),
        (lambda: end_incomplete("2 samples are missing."), 1, "2 samples are missing.\n", ""),
        (warn, 0, "Warning: batches come from few places\n", "done\n"),
    ],
)
def test_a_command_ends_with_a_code_and_one_line(body, code, stderr, stdout):
    result = run(body)
    assert (result.exit_code, result.stderr, result.stdout) == (code, stderr, stdout)


def test_an_error_of_ours_that_we_did_not_foresee_is_not_hidden():
    assert isinstance(run(lambda: 1 // 0).exception, ZeroDivisionError)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for another process")
def test_a_process_ends_with_130_after_a_signal():
    script = (
        "import click, time\n"
        "from xloader.cli.endings import plain_endings\n"
        "@click.command()\n"
        "def wait():\n"
        "    with plain_endings('Run it again.'):\n"
        "        print('begun', flush=True)\n"
        "        time.sleep(60)\n"
        "wait()\n"
    )
    command = [sys.executable, "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout.readline() == "begun\n"
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "Interrupted. Run it again.\n"
