# SPDX-License-Identifier: GPL-2.0-only
"""Commands about machines: ``calibrate``."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.base.whole_file import naming, whole_file
from btrfs_model.cli.common import Command, progress


@click.command(
    cls=Command,
    examples=(
        "btrfs-model calibrate -o machine.toml",
        "btrfs-model calibrate --kernel uml -o uml.toml",
        "btrfs-model replay send-utimes --machine ./machine.toml",
    ),
)
@click.option(
    "--kernel",
    default="native",
    show_default=True,
    metavar="native|uml|PATH",
    help="This machine's kernel (root), Debian's User-Mode Linux, or a linux.uml.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=60, show_default=True,
              help="How long is timed; two passes at least.")  # fmt: skip
@click.option("-o", "output", type=click.Path(path_type=Path), required=True, metavar="FILE.toml",
              help="Where the machine goes.")  # fmt: skip
def calibrate(kernel: str, seconds: float, output: Path) -> None:
    """Measure what each kind of work takes on a kernel.

    Small filesystems, made for one kind of work each, are counted by the model and timed on the
    kernel; twelve unit costs explain the times. Nothing else should run meanwhile.
    """
    from btrfs_model.experiments.calibration.api import calibrate as measure
    from btrfs_model.experiments.calibration.machine_file import BUSY

    with naming(output):
        # before minutes of measuring
        output.parent.stat()
    with progress() as step:
        text, measured = measure(kernel, seconds, step)
    if measured.spread > BUSY:
        click.echo(
            f"the machine is busy: equal runs spread by {measured.spread:.0%}, so intervals are "
            "wide; calibrate again when it is quiet",
            err=True,
        )
    with naming(output), whole_file(output) as file:
        file.write(text.encode())
