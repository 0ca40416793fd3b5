# SPDX-License-Identifier: GPL-2.0-only
"""Commands about the space and who uses it: ``devices``, ``extents``, ``du``, ``qgroups`` ..."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrfs_model.base.printable import printable
from btrfs_model.cli.common import (
    aside,
    give_table,
    note,
    print_json_lines,
    print_table,
    stdout,
    write_table,
)
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    Images,
    Whole,
    image_argument,
    images_before,
    json_option,
    one_output,
    subvolume_argument,
    table_option,
)

if TYPE_CHECKING:
    import pandas as pd


@click.command(
    cls=Command,
    examples=(
        "btrfs-model devices a.img b.img c.img",
        "btrfs-model devices folder --degraded --json | jq 'select(.missing)'",
        "btrfs-model devices folder --stripes --out stripes.parquet",
    ),
)
@image_argument
@click.option("--stripes", is_flag=True, help="A row for each stripe of each chunk instead.")
@json_option("One JSON object a line.")
@table_option("Write all columns as a table")
def devices(image: Images, stripes: bool, as_json: bool, output: Path | None) -> None:
    """Show the devices of a filesystem, and what of each is allocated to which kind of chunk.

    With --stripes it is where chunks lie: the device of each stripe, and the byte of the device.
    """
    one_output(as_json, output)
    with image.open() as fs:
        table = fs.stripes() if stripes else fs.devices()
    give_table(table, output, as_json=as_json)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model extents disk.img snap1 dir/file",
        "btrfs-model extents disk.img snap1 dir/file --json | jq 'select(.bookend > 0)'",
        "btrfs-model extents disk.img snap1 file --references --out refs.parquet",
    ),
)
@image_argument
@subvolume_argument
@click.argument("path")
@click.option("--references", is_flag=True,
              help="A row for each reference instead: subvolume, inode, offset, path.")  # fmt: skip
@json_option("One JSON object a line; an extent has its references inside.")
@table_option("Write all columns as a table")
def extents(
    image: Images, subvolume: str, path: str, references: bool, as_json: bool, output: Path | None
) -> None:
    """Show the extents of a file: how much of each is used, and by whom.

    `shown_here`: bytes of the extent that this file refers to; `shown`: bytes that any file refers
    to; `bookend`: bytes that no file refers to, and that are kept all the same. All uncompressed.
    """
    from btrfs_model.questions.usage.files import FileUsage

    one_output(as_json, output)
    with image.open() as fs:
        file = FileUsage(fs, subvolume, path)
        table = file.references() if references else file.table()
        inside = file.references() if as_json and not references else None
    if output is not None:
        write_table(table, output)
    elif inside is not None:
        _print_with_references(table, inside)
    else:
        narrow = ("disk_bytenr", "root", "inode", "offset", "path") if references else (
            "start", "length", "compression", "disk_bytenr", "disk_num_bytes", "references",
            "shown_here", "shown", "bookend", "shared",
        )  # fmt: skip
        print_table(table, as_json=as_json, narrow=narrow)


def _print_with_references(table: pd.DataFrame, references: pd.DataFrame) -> None:
    """Print each extent as a JSON object that holds its references."""
    by_extent: dict[int, list[Any]] = {}
    for reference in references.to_dict("records"):
        by_extent.setdefault(reference.pop("disk_bytenr"), []).append(reference)
    rows: list[Any] = table.to_dict("records")
    for row in rows:
        row["references"] = by_extent.get(row["disk_bytenr"], [])
    print_json_lines(rows)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model du disk.img",
        "btrfs-model du disk.img snap1 snap2 --json",
        "btrfs-model du disk.img 5 --nested",
        "btrfs-model du disk.img snap1 snap2 --together",
        "btrfs-model du disk.img --free 20G --json",
        "btrfs-model du disk.img --out du.parquet",
    ),
)
@images_before("subvolumes", "[SUBVOL]...")
@click.option("--nested", is_flag=True,
              help="Subvolumes inside are part of one, as in btrfs filesystem du.")  # fmt: skip
@click.option(
    "--together", is_flag=True,
    help="Show instead what it frees to delete them, each row with all above it.",
)  # fmt: skip
@click.option("--free", type=SIZE, metavar="SIZE",
              help="Show the fewest subvolumes to delete for so many bytes, of SUBVOL or of all "
                   "that are read-only.")  # fmt: skip
@json_option("One JSON object a line.")
@table_option("Write all columns as a table")
def du(
    image: Images,
    subvolumes: tuple[str, ...],
    nested: bool,
    together: bool,
    free: int | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show what subvolumes use alone and what they share, in bytes; all of them without SUBVOL.

    `total`, `exclusive` and `set_shared` are those of `btrfs filesystem du -s`: bytes of files, an
    extent being shared as soon as more than one place refers to it. The other columns are bytes on
    disk, of data extents and of tree blocks, and how many of them nothing outside refers to.

    With --together or --free the rows are those to delete, the oldest first: `alone` is what one
    frees by itself, `data`, `metadata` and `freed` what it frees with all rows above it.
    """
    from btrfs_model.questions.usage.freed import freed
    from btrfs_model.questions.usage.space import du as space

    one_output(as_json, output)
    if nested and (together or free is not None):
        raise click.UsageError("--nested has no meaning with --together and --free")
    if together and free is None and not subvolumes:
        raise click.UsageError("--together wants the subvolumes to delete: SUBVOL...")
    with image.open() as fs:
        if together or free is not None:
            table = freed(fs, *subvolumes, at_least=free)
        else:
            table = space(fs, *subvolumes, nested=nested)
    if free is not None and len(table) > table["fewest"].max():
        note(f"a search found these {len(table)}; fewer may do, but not fewer than "
             f"{table['fewest'].max()}")  # fmt: skip
    give_table(table, output, as_json=as_json)


_STATES = {
    4: "warning: qgroup data inconsistent, rescan recommended",
    2: "warning: rescan is running, qgroup data may be incorrect",
    8: "note: simple quotas: extents count for who allocated them",
}
"""What flags of the quota tree say (``BTRFS_QGROUP_STATUS_FLAG_*``), as btrfs-progs say it."""


@click.command(
    cls=Command,
    examples=("btrfs-model qgroups disk.img", "btrfs-model qgroups disk.img --json"),
)
@image_argument
@json_option("One JSON object a line.")
@table_option("Write all columns as a table")
def qgroups(image: Images, as_json: bool, output: Path | None) -> None:
    """Show the quota groups of an image, in bytes.

    `rfer` and `excl` are what a kernel counted, `reached` and `alone` what a rescan would count.
    Where the kernel says itself that its numbers are not right, so does a line on standard error.
    """
    from btrfs_model.ondisk.keys import ObjectId
    from btrfs_model.volume.quotas import quotas_of

    one_output(as_json, output)
    with image.open() as fs:
        table = fs.qgroups()
        state = quotas_of(fs.trees, fs.image).flags if ObjectId.QUOTA_TREE in fs.trees else 0
    for flag, line in _STATES.items():
        if state & flag:
            aside(f"btrfs-model: {image}: {line}")
    give_table(table, output, as_json=as_json)


@click.command(
    cls=Command,
    examples=("btrfs-model inode-resolve disk.img snap1 257",),
)
@image_argument
@subvolume_argument
@click.argument("inode", metavar="INO", type=Whole())
@json_option("One JSON object a line.")
def inode_resolve(image: Images, subvolume: str, inode: int, as_json: bool) -> None:
    """Show all paths of an inode in a subvolume, in the kernel's order (ioctl INO_PATHS)."""
    out = stdout()
    with image.open() as fs:
        paths = fs.subvolume(subvolume).paths_of(inode)
        if as_json:
            print_json_lines([{"path": path} for path in paths])
            return
        for path in paths:
            shown = printable(path, keep_bytes=not sys.stdout.isatty())
            out.write(shown.encode("utf-8", "surrogateescape") + b"\n")
    out.flush()
