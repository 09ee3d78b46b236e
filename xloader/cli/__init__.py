"""The command line of xloader: checks before a training, jobs over a whole archive, and the demo.

``explain``, ``bench``, ``stats``, ``advise`` and ``materialize`` take the same description of
samples: a store, and options that are named like the verbs of `Samples`. ``merge`` joins what
several processes have written.
"""

from __future__ import annotations

from typing import Any

import click

from xloader.cli.check_commands import doctor, inspect
from xloader.cli.demo_command import demo
from xloader.cli.endings import plain_endings
from xloader.cli.job_commands import materialize, merge, stats
from xloader.cli.loader_commands import advise, bench, explain

_SECTIONS = {
    "Before a training": (doctor, inspect, explain, bench),
    "Over a whole archive": (stats, advise, materialize, merge),
    "To try it": (demo,),
}


class SectionedGroup(click.Group):
    """A group of commands whose help lists them under headings."""

    def invoke(self, context: click.Context) -> Any:
        """Read the options of a command and call it."""
        with plain_endings():
            return super().invoke(context)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section, in the order in which a user meets them."""
        names = [command.name or "" for held in _SECTIONS.values() for command in held]
        width = max(map(len, names))
        for heading, commands in _SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{command.name:<{width}}", command.get_short_help_str(70))
                        for command in commands
                    ]
                )


@click.group(
    cls=SectionedGroup,
    epilog="xloader COMMAND --help shows the options of a command, with examples.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="xloader")
def main() -> None:
    """Plan shuffled epochs over chunked archives that read each chunk once.

    \b
    xloader inspect STORE                    what is in a store?
    xloader explain STORE --window time=3    what will an epoch read and need?
    """


for _commands in _SECTIONS.values():
    for _command in _commands:
        main.add_command(_command)
