# SPDX-License-Identifier: GPL-2.0-only
"""Commands about trees: ``dump-tree``, ``tree-stats``, ``check``, ``log``, ``logical-resolve``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrfs_model.base.printable import printable
from btrfs_model.cli.common import echo, print_json_lines, print_table, progress, stdout
from btrfs_model.cli.flags import (
    Command,
    Images,
    Whole,
    image_argument,
    json_option,
    one_output,
    output_option,
    whole_number,
)

if TYPE_CHECKING:
    from btrfs_model.ondisk.keys import Key


def _number(text: str) -> int:
    """Read a number of 64 bits, negative ones as the kernel prints them."""
    return whole_number(text) % 2**64


def _objectid(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read an objectid."""
    return None if value is None else _number(value)


def _tree_id(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a tree's id or name (``fs``, ``extent``, ``CSUM_TREE``)."""
    if value is None:
        return None
    from btrfs_model.questions.dumptree.trees import tree_number

    try:
        return tree_number(value)
    except ValueError:
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


@click.command(
    cls=Command,
    examples=(
        "btrfs-model dump-tree disk.img -t fs",
        "btrfs-model dump-tree disk.img -t 256 --objectid 257",
        "btrfs-model dump-tree disk.img -t extent --min-key 30408704 --max-key 30474240",
        "btrfs-model dump-tree disk.img -t csum --json",
        "btrfs-model dump-tree disk.img --out items.parquet",
    ),
)
@image_argument
@click.option(
    "-t",
    "--tree",
    callback=_tree_id,
    metavar="TREE",
    help="Only this tree, by id or name: 5, fs, extent, csum, root, chunk, ...",
)
@click.option(
    "-b",
    "--block",
    "blocks",
    type=Whole(),
    multiple=True,
    metavar="ADDRESS",
    help="Only the tree block at this logical address. Repeatable.",
)
@click.option("--follow", is_flag=True, help="With -b: everything below the block, too.")
@click.option("--objectid", callback=_objectid, metavar="N", help="Only items of this objectid.")
@click.option("--min-key", callback=_key, metavar="KEY", help="Only items from this key on.")
@click.option("--max-key", callback=_key, metavar="KEY", help="Only items up to this key.")
@click.option("-r", "--roots", is_flag=True, help="Only where the trees begin.")
@click.option("--dfs", is_flag=True, help="Each node before its children, not level by level.")
@click.option("--hide-names", is_flag=True, help="Show HIDDEN for names of files.")
@json_option("One JSON object a line for each item.")
@output_option("Write the items as a table in Parquet.", was=("--parquet",))
def dump_tree(
    image: Images,
    tree: int | None,
    blocks: tuple[int, ...],
    follow: bool,
    objectid: int | None,
    min_key: Key | None,
    max_key: Key | None,
    roots: bool,
    dfs: bool,
    hide_names: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show the items of trees, in the text of `btrfs inspect-internal dump-tree`.

    A KEY is OBJECTID,TYPE,OFFSET; type and offset are 0 when they are left out. On a terminal,
    names are escaped where btrfs-progs 6.2 writes the bytes that they are.
    """
    as_table = as_json or output is not None
    one_output(as_json, output)
    if output is not None and output.suffix == ".csv":
        raise click.UsageError("items go to Parquet; as text, --json has them")
    if as_table and (blocks or roots or dfs or hide_names):
        raise click.UsageError("-b, -r, --dfs and --hide-names are for text")
    if blocks and (tree is not None or roots):
        raise click.UsageError("-b goes with neither -t nor -r")
    if follow and not blocks:
        raise click.UsageError("--follow goes with -b")
    chosen: dict[str, Any] = {
        "min_key": min_key,
        "max_key": max_key,
        "objectid": objectid,
    }
    if blocks and any(value is not None for value in chosen.values()):
        raise click.UsageError("-b shows whole blocks: no --objectid, --min-key, --max-key")
    out, escape_names = stdout(), sys.stdout.isatty()
    with image.open() as fs, progress() as step:
        step(f"reading {image}")
        try:
            if output is not None:
                from btrfs_model.questions.dumptree.table import dump_tree_parquet

                dump_tree_parquet(fs.image, output, tree, **chosen)
            elif as_json:
                from btrfs_model.questions.dumptree.json_lines import dump_tree_json

                dump_tree_json(fs.image, out, tree, **chosen)
            elif blocks:
                from btrfs_model.questions.dumptree.text import dump_blocks_text

                dump_blocks_text(
                    fs.image, out, blocks, follow=follow, depth_first=dfs, hide_names=hide_names,
                    escape_names=escape_names,
                )  # fmt: skip
            else:
                from btrfs_model.questions.dumptree.text import dump_tree_text

                dump_tree_text(
                    fs.image, out, tree, **chosen, roots=roots, depth_first=dfs,
                    hide_names=hide_names, escape_names=escape_names,
                )  # fmt: skip
        finally:
            out.flush()


@click.command(
    cls=Command,
    examples=(
        "btrfs-model tree-stats disk.img",
        "btrfs-model tree-stats disk.img --json | jq -c '[.name, .leaves]'",
    ),
)
@image_argument
@json_option("One JSON object a line for each tree.")
def tree_stats(image: Images, as_json: bool) -> None:
    """Show levels, nodes, leaves, items and fill of trees.

    Fill is the used part of the leaves, 0 to 1; shared counts the blocks that are part of other
    trees, too.
    """
    from btrfs_model.questions.dumptree.statistics import tree_stats as measure

    with image.open() as fs, progress() as step:
        step(f"reading {image}")
        table = measure(fs)
    narrow = [name for name in table.columns if name not in ("bytes", "node_fill_mean")]
    print_table(table if as_json else table.round(3), as_json=as_json, narrow=narrow)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model check disk.img",
        "btrfs-model check disk.img --data --json",
    ),
)
@image_argument
@click.option("--data", is_flag=True, help="Read all data, too, and verify their checksums.")
@json_option("One JSON object a line for each finding.")
def check(image: Images, data: bool, as_json: bool) -> int:
    """Look for damage in an image: structure, references, space, directories, checksums.

    Prints a line for each finding; the exit status is 1 when there is any.
    """
    from btrfs_model.questions.check import check as check_image

    with image.open() as fs, progress() as step:
        step(f"checking {image}")
        findings = check_image(fs, verify_data=data)
    if as_json:
        print_json_lines(
            [
                {
                    "tree": finding.tree,
                    "block": finding.block,
                    "slot": finding.slot,
                    "key": None if finding.key is None else list(finding.key),
                    "what": finding.what,
                }
                for finding in findings
            ]
        )
    else:
        for finding in findings:
            echo(printable(str(finding)))
    if findings:
        count = "1 fault" if len(findings) == 1 else f"{len(findings)} faults"
        click.echo(f"btrfs-model: {image}: {count} found", err=True)
        return 1
    if not as_json:
        echo(f"{image}: no fault found")
    return 0


@click.command(
    cls=Command,
    examples=(
        "btrfs-model logical-resolve disk.img 13631488",
        "btrfs-model logical-resolve disk.img 13631488 --ignore-offset --json",
    ),
)
@image_argument
@click.argument("logical", type=Whole())
@click.option(
    "--ignore-offset",
    is_flag=True,
    help="All files that refer to the extent, whichever part of it they show.",
)
@json_option("One JSON object a line.")  # fmt: skip
def logical_resolve(image: Images, logical: int, ignore_offset: bool, as_json: bool) -> None:
    """Show which files use a logical address, in the kernel's order (ioctl LOGICAL_INO_V2)."""
    import pandas as pd

    from btrfs_model.backref.api import logical_ino
    from btrfs_model.questions.usage.files import full_path

    with image.open() as fs:
        found = logical_ino(fs, logical, ignore_offset=ignore_offset)
        paths = []
        for inum, root in zip(found["inum"].tolist(), found["root"].tolist(), strict=True):
            paths.append(full_path(fs, root, inum))
    found["path"] = pd.Series(paths, dtype="object")
    print_table(found, as_json=as_json)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model log explain crashed.img",
        "btrfs-model log explain crashed.img --behaviour v5.15 --behaviour v6.12",
        "btrfs-model log explain crashed.img --json | jq -r .path",
    ),
)
@click.argument("what", type=click.Choice(["explain"]))
@image_argument
@click.option("--behaviour", "behaviours", multiple=True, metavar="KERNEL",
              help="A kernel that mounts it; several times.  [default: from v5.10]")  # fmt: skip
@json_option("One JSON object a line, with its part: logged, mounts, brings.")
def log(what: str, image: Images, behaviours: tuple[str, ...], as_json: bool) -> None:
    """Say what the log of a crashed filesystem holds, and what the mounts of kernels make of it.

    First the inodes in the log, by name. Then how a mount ends, kernel by kernel; where that
    changes from one to the next, the toggles that are the reason. At last what each outcome brings,
    path by path, beside the last commit: that is lost, too, where the log is zeroed. IMAGE stays as
    it is.
    The status is 1 where the log is damaged, after all that can be read of it.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.questions.logexplain import explain_log

    with image.open() as fs, progress() as step:
        step("replaying the log as each kernel")
        told = explain_log(fs, behaviours=behaviours)
    parts = {"logged": ("in the log", told.logged), "mounts": ("a mount", told.replays)}
    for part, (title, table) in parts.items():
        shown = table.assign(part=part) if as_json else table
        print_table(shown, as_json=as_json, title=None if as_json else title)
    for kernels, table in told.changes.items():
        shown = table.assign(part="brings", kernels=kernels) if as_json else table
        if len(table):
            title = f"what the mount of {kernels} brings, and what is lost without the log"
            print_table(shown, as_json=as_json, title=None if as_json else title,
                        narrow=("change", "path", "was", "size_before", "size", "content",
                                "attributes"))  # fmt: skip
    if told.problem:
        raise BtrfsModelError(told.problem)
