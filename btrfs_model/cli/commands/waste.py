# SPDX-License-Identifier: GPL-2.0-only
"""Commands about space that could be saved: ``waste``, ``compression``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from btrfs_model.cli.common import give_table
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    Images,
    behaviour_option,
    images_before,
    json_option,
    one_output,
    table_option,
)

_WASTE_NARROW = {
    "rewrite": (
        "path", "extents", "referenced", "disk", "unreferenced", "frees", "writes", "saves",
    ),
    "fragments": ("path", "extents", "fragments", "referenced", "disk"),
    "references": (
        "disk_bytenr", "disk_num_bytes", "references", "items", "subvolumes", "unreferenced",
        "path",
    ),
}  # fmt: skip


@contextmanager
def _options_fit() -> Iterator[None]:
    """Make wrong usage of a ValueError: options and values that do not fit."""
    from btrfs_model.base.errors import BtrfsModelError

    try:
        yield
    except BtrfsModelError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _subvolume_and_path(named: tuple[str, ...]) -> tuple[str | None, str | None]:
    if len(named) > 2:
        raise click.UsageError(f"one subvolume and one path at most: {named[2]!r} is a third word")
    subvolume, path, *_ = (*named, None, None)
    return subvolume, path


@click.command(
    cls=Command,
    examples=(
        "btrfs-model waste disk.img",
        "btrfs-model waste disk.img home dir --json | jq 'select(.saves > 0)'",
        "btrfs-model waste disk.img home --threshold 32M",
        "btrfs-model waste disk.img --by references --out extents.parquet",
    ),
)
@images_before("named", "[SUBVOL [PATH]]")
@click.option(
    "--by",
    type=click.Choice(("rewrite", "fragments", "references")),
    default="rewrite",
    show_default=True,
    help="What ranks the rows; by references they are extents.",
)
@click.option(
    "--threshold", type=SIZE, metavar="SIZE",
    help="Write anew what `btrfs filesystem defragment -t SIZE` does, not all.",
)  # fmt: skip
@json_option("One JSON object a line.")
@table_option("Write all columns as a table")
def waste(
    image: Images,
    named: tuple[str, ...],
    by: str,
    threshold: int | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show what files keep on disk for nothing, and what writing them anew frees and costs.

    `unreferenced`: bytes of a file's extents that no file of any subvolume shows; `frees`: bytes on
    disk that only this file keeps; `writes`: what the new extents take. Without SUBVOL it is files
    of all subvolumes that are not read-only. PATH is a file or a directory.
    """
    from btrfs_model.questions.usage.waste import waste as wasted

    one_output(as_json, output)
    subvolume, path = _subvolume_and_path(named)
    with image.open() as fs, _options_fit():
        table = wasted(fs, subvolume, path, by=by, threshold=threshold)
    give_table(table, output, as_json=as_json, narrow=_WASTE_NARROW[by])


@click.command(
    cls=Command,
    examples=(
        "btrfs-model compression disk.img home",
        "btrfs-model compression disk.img home dir --why --levels",
        "btrfs-model compression disk.img home --try zstd:3 --try zlib:9 --try lzo",
        "btrfs-model compression disk.img home --by algorithm --json",
    ),
)
@images_before("named", "SUBVOL [PATH]")
@click.option("--by", type=click.Choice(("file", "algorithm", "extent")), default="file",
              show_default=True, help="What a row is.")  # fmt: skip
@click.option("--why", is_flag=True, help="Say why data are not compressed, from their bytes.")
@click.option("--levels", is_flag=True,
              help="Look for the level: compress some extents again, by each.")  # fmt: skip
@click.option("--try", "trials", multiple=True, metavar="[force:]ALGORITHM[:LEVEL]",
              help="What files would take, written anew by that. Repeatable.")  # fmt: skip
@behaviour_option()
@json_option("One JSON object a line.")
@table_option("Write all columns as a table")
def compression(
    image: Images,
    named: tuple[str, ...],
    by: str,
    why: bool,
    levels: bool,
    trials: tuple[str, ...],
    behaviour: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show how files are compressed, why some are not, and what other ways would give.

    `disk` and `uncompressed` are bytes of whole data extents, each counted once, and of inline
    data, as compsize counts files with one name. Levels of zstd are told where Linux 6.15 or later
    wrote the data.
    """
    from btrfs_model.questions.usage.compressed import compression as compressed

    one_output(as_json, output)
    subvolume, path = _subvolume_and_path(named)
    if subvolume is None:
        raise click.UsageError("Missing argument: IMAGE... SUBVOL [PATH] is wanted")
    with image.open() as fs, _options_fit():
        table = compressed(
            fs, subvolume, path, by=by, why=why, levels=levels, trials=trials, behaviour=behaviour
        )
    give_table(table, output, as_json=as_json)
