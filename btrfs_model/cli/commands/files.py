# SPDX-License-Identifier: GPL-2.0-only
"""Commands about subvolumes and files: ``subvolumes``, ``ls``, ``cat``, ``tar``, ``fiemap``."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.base.printable import printable
from btrfs_model.cli.common import (
    give_table,
    note,
    print_table,
    progress,
    stdout,
    write_work,
)
from btrfs_model.cli.flags import (
    Command,
    Images,
    behaviour_option,
    image_argument,
    json_option,
    limits_option,
    machine_option,
    one_output,
    output_option,
    subvolume_argument,
    table_option,
    work_option,
)
from btrfs_model.cli.times import print_time, timed_on

if TYPE_CHECKING:
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume

_PIECE = 4 << 20
# what ls shows, and which fields of an inode that is
_COLUMNS = {
    "mode": "{mode|filemode}",
    "links": "{nlink}",
    "uid": "{uid}",
    "gid": "{gid}",
    "size": "{size}",
    "modified": "{mtime|utc}",
    "path": "{PATH}",
}


@click.command(
    cls=Command,
    examples=(
        "btrfs-model subvolumes disk.img",
        "btrfs-model subvolumes disk.img --json | jq -r 'select(.read_only) | .path'",
    ),
)
@image_argument
@json_option("One JSON object a line, with all there is to know.")
def subvolumes(image: Images, as_json: bool) -> None:
    """List the subvolumes of an image."""
    with image.open() as fs:
        table = fs.subvolumes()
    if not as_json:
        table = table[["id", "parent", "generation", "read_only", "uuid", "path"]]
    print_table(table, as_json=as_json)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model ls disk.img snap1",
        "btrfs-model ls disk.img 256 --json | jq -r 'select(.size > 1000000) | .path'",
    ),
)
@image_argument
@subvolume_argument
@json_option("One JSON object a line.")
def ls(image: Images, subvolume: str, as_json: bool) -> None:
    """List the files of a subvolume; times are UTC."""
    with image.open() as fs:
        print_listing(fs, subvolume, as_json=as_json)


def print_listing(fs: Filesystem, subvolume: str, *, as_json: bool) -> None:
    """Print the files of a subvolume, as ``ls`` does."""
    if not as_json and not sys.stdout.isatty():
        _write_rows(fs.subvolume(subvolume))
        return
    import numpy as np
    import pandas as pd

    from btrfs_model.stream.dump import json_bytes, json_name

    table = fs.listing(subvolume, content=False)
    if as_json:
        table["target"] = pd.Series(
            [None if target is None else json_name(target) for target in table["target"]],
            dtype="object",
        )
        table["xattrs"] = pd.Series(
            [
                {json_name(name): json_bytes(value) for name, value in of_one.items()}
                for of_one in table["xattrs"]
            ],
            dtype="object",
        )
    else:
        seconds = np.array([time // 10**9 for time in table["mtime"].tolist()], "M8[s]")
        times = np.datetime_as_string(seconds)
        table = pd.DataFrame(
            {
                "mode": [stat.filemode(mode) for mode in table["mode"]],
                "links": table["nlink"],
                "uid": table["uid"],
                "gid": table["gid"],
                "size": table["size"],
                "modified": [time.replace("T", " ") for time in times.tolist()],
                "path": table["path"].where(table["path"] != "", "."),
            }
        )
    print_table(table, as_json=as_json)


def _write_rows(subvolume: Subvolume) -> None:
    """Write what `ls` shows to a file or pipe, fast."""
    from btrfs_model.native.text import Answer, FormWriter
    from btrfs_model.ondisk.structs import INODE_ITEM
    from btrfs_model.questions.dumptree.templates import structure, utc
    from btrfs_model.volume.listing import Listing

    listed = Listing(subvolume)

    def name(row: int, *_: int) -> bytes:
        shown = printable(listed.path(row), keep_bytes=True)
        return shown.encode("utf-8", "surrogateescape")

    form = "\t".join(_COLUMNS.values())
    row = structure(INODE_ITEM, form, indent=0)
    answers: dict[str, Answer] = {"name_word": name, "utc_word": utc}
    out = stdout()
    out.write("\t".join(_COLUMNS).encode() + b"\n")
    listed.write(FormWriter({"row": row}, answers), out)
    out.flush()


@click.command(
    cls=Command,
    examples=("btrfs-model cat disk.img snap1 dir/file > file",),
)
@image_argument
@subvolume_argument
@click.argument("path")
def cat(image: Images, subvolume: str, path: str) -> None:
    """Write the content of a file to standard output; data checksums are verified."""
    with image.open() as fs:
        write_content(fs, subvolume, path)


def write_content(fs: Filesystem, subvolume: str, path: str) -> None:
    """Write the content of a file to standard output, as ``cat`` does."""
    from btrfs_model.base.errors import BtrfsModelError

    out = stdout()
    where = fs.subvolume(subvolume)
    inode = where.inode(path)
    if not (stat.S_ISREG(inode.mode) or stat.S_ISLNK(inode.mode)):
        raise BtrfsModelError(f"{fs.path}: {path} is not a file")
    for offset in range(0, inode.size, _PIECE):
        out.write(where.read_file(inode.ino, offset, _PIECE))
    out.flush()


@click.command(
    cls=Command,
    examples=(
        "btrfs-model diff disk.img snap1 snap2",
        "btrfs-model diff disk.img snap1 snap2 --content-only --json | jq -r .path",
    ),
)
@image_argument
@click.argument("before", metavar="SUBVOL")
@click.argument("after", metavar="SUBVOL")
@click.option("--content-only", is_flag=True, help="Leave out what changed in attributes alone.")
@click.option("--times", is_flag=True, help="Tell other times of modification, too.")
@json_option("One JSON object a line.")
@table_option()
def diff(
    image: Images,
    before: str,
    after: str,
    content_only: bool,
    times: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show what changed from one subvolume to another, by path.

    Files of snapshots of one subvolume are known by their inode, so they may be renamed; all others
    by their path. Contents are compared, so what was written again with the same bytes, or
    deduplicated, has not changed. What moved with its directory is not listed.
    """
    from btrfs_model.questions.diff import diff as compare

    one_output(as_json, output)
    with image.open() as fs, progress() as step:
        step(f"comparing {before} with {after}")
        table = compare(fs, before, after, content_only=content_only, times=times)
    give_table(table, output, as_json=as_json,
               narrow=("change", "path", "was", "content", "attributes"))  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        "btrfs-model tar disk.img snap1 -o snap1.tar",
        "btrfs-model tar disk.img 256 | tar -x --xattrs --xattrs-include='*' -C folder",
    ),
)
@image_argument
@subvolume_argument
@output_option("Write the archive to FILE instead of standard output.", default=None)
def tar(image: Images, subvolume: str, output: Path | None) -> None:
    """Write all files of a subvolume as a tar archive; data checksums are verified.

    Names, owners, permissions, times with nanoseconds, xattrs, links and holes are in it, as GNU
    tar and libarchive read them. Sockets are left out, and told.
    """
    with image.open() as fs:
        write_archive(fs, subvolume, output)


def write_archive(fs: Filesystem, subvolume: str, output: Path | None) -> None:
    """Write a subvolume as a tar archive, as ``tar`` does."""
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.questions.archive import write_tar

    if output is None and sys.stdout.isatty():
        raise BtrfsModelError("not writing a tar archive to a terminal, redirect it into a file")
    out = stdout()
    for path in write_tar(fs, subvolume, out if output is None else output):
        note(f"{printable(path)} is a socket, which no tar archive holds")
    out.flush()


@click.command(
    cls=Command,
    examples=(
        "btrfs-model fiemap disk.img snap1 dir/file",
        "btrfs-model fiemap disk.img snap1 dir/file --behaviour 'v6.2' --work work.json",
        "btrfs-model fiemap disk.img 256 file --json | jq -c .flags | sort | uniq -c",
    ),
)
@image_argument
@subvolume_argument
@click.argument("path")
@behaviour_option()
@limits_option
@json_option("One JSON object a line.")
@work_option("Write how often each kernel function was called.")
@machine_option
def fiemap(
    image: Images,
    subvolume: str,
    path: str,
    behaviour: str,
    limits: dict[str, int],
    as_json: bool,
    work: Path | None,
    machine: str | None,
) -> None:
    """Show the extents of a file as the FIEMAP ioctl reports them.

    Sizes and places are in bytes. The calls are those of `filefrag`: 292 extents each. With
    --machine, and on a terminal with --work, the time is told on standard error, all that is read
    being in memory.
    """
    from btrfs_model.base.counters import counting
    from btrfs_model.questions.fiemap.api import FLAGS, Fiemap

    computes = timed_on(machine, work)
    with image.open() as fs:
        file = Fiemap(fs, subvolume, path, behaviour=behaviour, limits=limits)
        with counting() as counted:
            table = file.run()
    names = [[name for flag, name in FLAGS.items() if flags & flag] for flags in table["flags"]]
    table["flags"] = names if as_json else [",".join(of_one) for of_one in names]
    write_work(work, counted)
    print_table(table, as_json=as_json)
    if computes is not None:
        print_time("fiemap", computes, counted)
