# SPDX-License-Identifier: GPL-2.0-only
"""The commands ``draw`` and ``explore``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from btrfs_model.base.printable import printable
from btrfs_model.cli.common import echo
from btrfs_model.cli.flags import (
    Command,
    Images,
    Whole,
    image_argument,
    images_before,
    output_option,
    parent_option,
    sample_option,
)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model draw --sample",
        "btrfs-model draw disk.img -o disk.svg",
        "btrfs-model draw disk.img snap1 snap2 -o shared.svg",
        "btrfs-model draw disk.img --log sub -o log.svg",
        "btrfs-model draw disk.img --block 30408704 -o leaf.svg",
    ),
)
@images_before("subvolumes", "[SUBVOL]...")
@sample_option
@click.option("--log", metavar="SUBVOL", help="A subvolume and its log, after a crash.")
@click.option("--block", type=Whole(), metavar="ADDRESS", help="The tree block at this address.")
@click.option("--blocks", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="About so many boxes for tree blocks; what is more is folded.")  # fmt: skip
@output_option("Write the picture to FILE instead of standard output.", was=("--output",))
def draw(
    image: Images,
    subvolumes: tuple[str, ...],
    is_sample: bool,
    log: str | None,
    block: int | None,
    blocks: int,
    output: Path | None,
) -> None:
    """Draw a filesystem, subvolumes and the blocks that they share, or a leaf, as SVG.

    A block that several trees share stands once, with an arrow from each block that points at it.
    Of --sample both snapshots are drawn, into sample.svg, if nothing else is named.
    """
    from btrfs_model.drawings.api import draw as draw_it

    if sum((bool(subvolumes), log is not None, block is not None)) > 1:
        raise click.UsageError("SUBVOL, --log and --block do not go together")
    if is_sample:
        output = output or Path("sample.svg")
        if log is None and block is None:
            subvolumes = subvolumes or ("snap1", "snap2")
    with image.open() as fs:
        if block is not None:
            drawing = draw_it(fs.image.block(block))
        elif log is not None:
            subvolume = fs.subvolume(log)
            if subvolume.id not in fs.log_trees:
                raise click.UsageError(f"{image}: subvolume {log!r} has no log")
            drawing = draw_it([subvolume, fs.log_trees[subvolume.id]], blocks=blocks)
        else:
            tops = [fs.subvolume(name) for name in subvolumes]
            drawing = draw_it(tops or fs, blocks=blocks)
    if output is None:
        echo(drawing.svg.rstrip("\n"))
    else:
        drawing.save(output)
        if is_sample:
            echo(f"{printable(output)}: {output.stat().st_size:,} bytes, for a browser")


@click.command(
    cls=Command,
    examples=(
        "btrfs-model explore --sample",
        "btrfs-model explore disk.img",
        "btrfs-model explore disk.img -o page.html",
        "btrfs-model explore disk.img --send snap2 -p snap1 -o page.html",
        "btrfs-model explore v6.1.img --beside v6.12.img -o page.html",
    ),
)
@image_argument
@sample_option
@click.option("--send", "snapshot", metavar="SUBVOL", help="Show the commands of a send as well.")
@parent_option
@click.option("--beside", type=click.Path(path_type=Path), metavar="IMAGE",
              help="Put another image beside it, and what differs.")  # fmt: skip
@output_option("Write the page to FILE.  [default: IMAGE's name with .html]", was=("--output",))
def explore(
    image: Images,
    is_sample: bool,
    snapshot: str | None,
    parent: str | None,
    beside: Path | None,
    output: Path | None,
) -> None:
    """Make a page of a filesystem, to look around in with a browser.

    It is one file that needs nothing else: trees unfold down to items, with each field beside its
    bytes. It finds keys, inodes, paths and logical addresses, says who refers to blocks and
    extents, and puts two trees side by side, also those of older roots and of the image that
    --beside names. File data outside of trees is not in it. Of --sample it has the send of the
    second snapshot, too.
    """
    from btrfs_model.drawings.explore import explore as make_page
    from btrfs_model.volume.filesystem import Filesystem

    if is_sample and len(image.paths) > 1:
        raise click.UsageError("--sample stands for IMAGE")
    if parent is not None and snapshot is None:
        raise click.UsageError("-p wants --send")
    if output is None:
        name = "sample" if is_sample else Path(image.paths[0]).name
        output = Path(name).with_suffix(".html")
    if is_sample and snapshot is None:
        snapshot, parent = "snap2", "snap1"
    with image.open() as fs, nullcontext() if beside is None else Filesystem.open(beside) as other:
        make_page(fs, snapshot, parent, beside=other).save(output)
    echo(f"{printable(output)}: {output.stat().st_size:,} bytes")
