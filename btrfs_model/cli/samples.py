# SPDX-License-Identifier: GPL-2.0-only
"""The command ``sample``."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import Command, json_option, print_table


@click.command(
    cls=Command,
    examples=(
        "btrfs-model sample",
        "btrfs-model sample zstd -o disk.img",
        "btrfs-model sample kernel/send/send-utimes/n200 -o disk.img",
    ),
)
@click.argument("name", required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="IMAGE",
              help="Image file to write; it is yours.")  # fmt: skip
@json_option("List them as one JSON object a line.")
def sample(name: str | None, output: Path | None, as_json: bool) -> None:
    """Write an image that a kernel made, or list those that are there with what each shows.

    Of a NAME its end will do where there is only one such. An installed package has small samples;
    BTRFS_MODEL_DATA names the folder 'data' of a clone, which has all.
    """
    from btrfs_model.base.samples import described, write_sample

    if (name is None) != (output is None):
        raise click.UsageError("NAME goes with -o IMAGE")
    if name is not None and output is not None:
        write_sample(name, output)
        return
    import pandas as pd

    print_table(pd.DataFrame(described(), columns=["name", "shows"]), as_json=as_json)
