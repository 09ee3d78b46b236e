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


def test_an_error_is_one_line_and_code_2():
    def fail():
        raise OptionError("the part is wrong", given="9/8", remedy="count from 0")

    result = run(fail)
    assert result.exit_code == 2
    assert result.stderr == "Error: the part is wrong. Given: 9/8. To mend it: count from 0.\n"
    assert result.stdout == ""


def test_ctrl_c_says_how_to_go_on():
    def interrupt():
        raise KeyboardInterrupt

    result = run(interrupt)
    assert result.exit_code == 130
    assert result.stderr == "Interrupted. Run it again.\n"


def test_an_incomplete_job_ends_with_1():
    result = run(lambda: end_incomplete("2 samples are missing."))
    assert (result.exit_code, result.stderr) == (1, "2 samples are missing.\n")


def test_a_warning_is_one_line_on_stderr():
    def warn():
        # The tests turn warnings into errors.
        warnings.simplefilter("always")
        warnings.warn("batches come from few places", PlanWarning, stacklevel=1)
        click.echo("done")

    result = run(warn)
    assert result.exit_code == 0
    assert (result.stdout, result.stderr) == ("done\n", "Warning: batches come from few places\n")


def test_an_error_of_ours_that_we_did_not_foresee_is_not_hidden():
    def fail():
        raise ZeroDivisionError

    assert isinstance(run(fail).exception, ZeroDivisionError)


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
