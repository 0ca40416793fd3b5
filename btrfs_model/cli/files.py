# SPDX-License-Identifier: GPL-2.0-only
"""Commands about subvolumes and files: ``subvolumes``, ``ls``, ``cat``."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import (
    image_argument,
    json_option,
    print_table,
    stdout,
    subvolume_argument,
)

__all__ = ["cat", "ls", "subvolumes"]

_PIECE = 4 << 20


@click.command()
@image_argument
@json_option("One JSON object a line, with all there is to know.")
def subvolumes(image: Path, as_json: bool) -> None:
    r"""List the subvolumes of an image.

    \b
    Examples:
      btrfs-model subvolumes disk.img
      btrfs-model subvolumes disk.img --json | jq -r 'select(.read_only) | .path'
    """
    from btrfs_model.filesystem import Filesystem

    with Filesystem.open(image) as fs:
        table = fs.subvolumes()
    if not as_json:
        table = table[["id", "parent", "generation", "read_only", "uuid", "path"]]
    print_table(table, as_json=as_json)


@click.command()
@image_argument
@subvolume_argument
@json_option("One JSON object a line.")
def ls(image: Path, subvolume: str, as_json: bool) -> None:
    r"""List the files of a subvolume.

    \b
    Examples:
      btrfs-model ls disk.img snap1
      btrfs-model ls disk.img 256 --json | jq -r 'select(.size > 1000000) | .path'
    """
    from btrfs_model.filesystem import Filesystem

    with Filesystem.open(image) as fs:
        table = fs.listing(subvolume, content=False)
    print_table(table, as_json=as_json)


@click.command()
@image_argument
@subvolume_argument
@click.argument("path")
def cat(image: Path, subvolume: str, path: str) -> None:
    r"""Write the content of a file to standard output; data checksums are verified.

    \b
    Examples:
      btrfs-model cat disk.img snap1 dir/file > file
    """
    from btrfs_model.filesystem import Filesystem

    out = stdout()
    with Filesystem.open(image) as fs:
        where = fs.subvolume(subvolume)
        inode = where.inode(path)
        for offset in range(0, inode.size, _PIECE):
            out.write(where.read_file(inode.ino, offset, _PIECE))
    out.flush()
