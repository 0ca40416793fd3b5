# SPDX-License-Identifier: GPL-2.0-only
"""The command ``draw``."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import Command, Images, Whole, echo, images_before


@click.command(
    cls=Command,
    examples=(
        "btrfs-model draw disk.img -o disk.svg",
        "btrfs-model draw disk.img snap1 snap2 -o shared.svg",
        "btrfs-model draw disk.img --log sub -o log.svg",
        "btrfs-model draw disk.img --block 30408704 -o leaf.svg",
    ),
)
@images_before("subvolumes", "[SUBVOL]...")
@click.option("--log", metavar="SUBVOL", help="A subvolume and its log, after a crash.")
@click.option("--block", type=Whole(), metavar="ADDRESS", help="The tree block at this address.")
@click.option("--blocks", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="About so many boxes for tree blocks; what is more is folded.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
              help="Write the picture to FILE instead of standard output.")  # fmt: skip
def draw(
    image: Images,
    subvolumes: tuple[str, ...],
    log: str | None,
    block: int | None,
    blocks: int,
    output: Path | None,
) -> None:
    """Draw a filesystem, subvolumes and the blocks that they share, or a leaf, as SVG.

    A block that several trees share stands once, with an arrow from each block that points at it.
    """
    from btrfs_model.drawings.api import draw as draw_it

    if sum((bool(subvolumes), log is not None, block is not None)) > 1:
        raise click.UsageError("SUBVOL, --log and --block do not go together")
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
