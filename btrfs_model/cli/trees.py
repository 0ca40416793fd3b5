# SPDX-License-Identifier: GPL-2.0-only
"""Commands about trees: ``dump-tree``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.cli.common import image_argument, stdout

if TYPE_CHECKING:
    from btrfs_model.ondisk.keys import Key

__all__ = ["dump_tree"]


def _number(text: str) -> int:
    """Read a number of 64 bits, negative ones as the kernel prints them."""
    try:
        return int(text, 0) % 2**64
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a number") from None


def _tree_id(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a tree's id or name (``fs``, ``extent``, ``CSUM_TREE``)."""
    if value is None:
        return None
    from btrfs_model.ondisk.keys import ObjectId

    name = value.upper().removesuffix("_TREE")
    for candidate in (f"{name}_TREE", name):
        if candidate in ObjectId.__members__:
            return int(ObjectId[candidate])
    return _number(value)


def _key(_: click.Context, __: click.Parameter, value: str | None) -> Key | None:
    """Read a key: ``OBJECTID[,TYPE[,OFFSET]]``, the type as a number or name."""
    if value is None:
        return None
    from btrfs_model.ondisk.keys import ItemType, Key

    parts = value.split(",")
    if len(parts) > 3:
        raise click.BadParameter("a key is OBJECTID,TYPE,OFFSET")
    kind = parts[1].upper() if len(parts) > 1 else "0"
    known = ItemType.__members__
    return Key(
        _number(parts[0]),
        int(known[kind]) if kind in known else _number(kind) % 256,
        _number(parts[2]) if len(parts) > 2 else 0,
    )


@click.command()
@image_argument
@click.option(
    "-t",
    "--tree",
    callback=_tree_id,
    metavar="TREE",
    help="Only this tree, by id or name: 5, fs, extent, csum, root, chunk, ...",
)
@click.option("--objectid", type=int, metavar="N", help="Only items of this objectid.")
@click.option("--min-key", callback=_key, metavar="KEY", help="Only items from this key on.")
@click.option("--max-key", callback=_key, metavar="KEY", help="Only items up to this key.")
@click.option("-r", "--roots", is_flag=True, help="Only where the trees begin.")
@click.option("--hide-names", is_flag=True, help="Show HIDDEN for names of files.")
def dump_tree(
    image: Path,
    tree: int | None,
    objectid: int | None,
    min_key: Key | None,
    max_key: Key | None,
    roots: bool,
    hide_names: bool,
) -> None:
    r"""Show the items of trees, in the text of `btrfs inspect-internal dump-tree`.

    A KEY is OBJECTID,TYPE,OFFSET; type and offset are 0 when they are left out.

    \b
    Examples:
      btrfs-model dump-tree disk.img -t fs
      btrfs-model dump-tree disk.img -t 256 --objectid 257
      btrfs-model dump-tree disk.img -t extent --min-key 30408704 --max-key 30474240,EXTENT_ITEM
    """
    from btrfs_model.dumptree import dump_tree_text
    from btrfs_model.filesystem import Filesystem

    out = stdout()
    with Filesystem.open(image) as fs:
        try:
            dump_tree_text(
                fs.image, out, tree, min_key=min_key, max_key=max_key,
                objectid=None if objectid is None else objectid % 2**64,
                roots=roots, hide_names=hide_names,
            )  # fmt: skip
        finally:
            out.flush()
