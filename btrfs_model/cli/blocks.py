# SPDX-License-Identifier: GPL-2.0-only
"""Commands about tree blocks: ``reads``."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

import click

from btrfs_model.cli.common import (
    Command,
    behaviour_option,
    image_argument,
    json_option,
    print_table,
    progress,
    subvolume_argument,
)

__all__ = ["reads"]


@click.command(
    cls=Command,
    examples=(
        "btrfs-model reads disk.img snap1",
        "btrfs-model reads disk.img snap2 -p snap1 --mounted rw --json | jq .physical",
        "btrfs-model reads disk.img snap1 --behaviour v5.12 --parquet 5.12.parquet",
        "btrfs-model reads disk.img snap1 --readdir some/dir",
    ),
)
@image_argument
@subvolume_argument
@behaviour_option()
@click.option("-p", "--parent", metavar="SUBVOL", help="Send the difference to this subvolume.")
@click.option("--readdir", metavar="DIR", help="List this directory (. is the top) instead.")
@click.option(
    "--mounted",
    type=click.Choice(["rw", "ro"]),
    help="Start with what such a mount and opening the subvolumes left in memory.",
)
@click.option(
    "--cached",
    type=click.File(),
    metavar="FILE",
    help="Start with these blocks in memory: a logical address in each line.",
)
@json_option("One JSON object a line.")
@click.option("--parquet", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the table there instead of printing it.")  # fmt: skip
def reads(
    image: Path,
    subvolume: str,
    behaviour: str,
    parent: str | None,
    readdir: str | None,
    mounted: str | None,
    cached: TextIO | None,
    as_json: bool,
    parquet: Path | None,
) -> None:
    """Show the tree blocks that a cold kernel reads to send a subvolume, in order.

    Each is read on demand or ahead. PHYSICAL is the byte of the first copy; USED says whether
    anything came to the block. Without --mounted or --cached nothing is in memory at the start.
    """
    from btrfs_model.cold import blocks_after_mount
    from btrfs_model.filesystem import Filesystem
    from btrfs_model.patches import Behaviour
    from btrfs_model.reads import reads as reads_of

    if parent is not None and readdir is not None:
        raise click.UsageError("--parent goes with a send, not with --readdir")
    if as_json and parquet is not None:
        raise click.UsageError("--json and --parquet exclude each other")
    chosen = Behaviour.parse(behaviour)
    start = _addresses(cached)
    with Filesystem.open(image) as fs, progress() as step:
        step(f"reading {subvolume}")
        if mounted is not None:
            opened = [fs.subvolume(name) for name in (subvolume, parent) if name is not None]
            start |= blocks_after_mount(fs, opened, chosen, writable=mounted == "rw")
        table = reads_of(
            fs, subvolume, behaviour=chosen, parent=parent, readdir=readdir, cached=start
        )
    if parquet is not None:
        table.to_parquet(parquet, index=False)
    else:
        print_table(table, as_json=as_json)


def _addresses(file: TextIO | None) -> set[int]:
    """Read logical addresses, one in each line."""
    try:
        return {int(line, 0) for line in file or () if line.strip()}
    except ValueError as error:
        raise click.BadParameter(f"not an address: {error}", param_hint="--cached") from None
