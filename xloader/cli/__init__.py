"""The command line of xloader: jobs over a whole archive, and the demo.

``stats``, ``advise`` and ``materialize`` take the same description of samples: a store, and options
that are named like the verbs of `Samples`. ``merge`` joins what several processes have written.
"""

from __future__ import annotations

import click

from xloader.cli.advise_command import advise
from xloader.cli.bench_command import bench
from xloader.cli.demo_command import demo
from xloader.cli.doctor_command import doctor
from xloader.cli.explain_command import explain
from xloader.cli.inspect_command import inspect
from xloader.cli.materialize_command import materialize
from xloader.cli.merge_command import merge
from xloader.cli.stats_command import stats


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="xloader")
def main() -> None:
    """Prepare archives for training, and plan shuffled epochs that read each chunk once."""


for _command in (doctor, inspect, explain, bench, stats, advise, materialize, merge, demo):
    main.add_command(_command)
