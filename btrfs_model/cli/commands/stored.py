# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model stream``: send streams that were stored, without an image."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import click

from btrfs_model.cli.commands.files import print_listing, write_archive, write_content
from btrfs_model.cli.common import aside, give_table, progress
from btrfs_model.cli.flags import Command, json_option, output_option


@click.command(
    cls=Command,
    examples=(
        "btrfs-model stream verify full.stream monday.stream tuesday.stream",
        "btrfs-model stream verify tuesday.stream --target backup.img",
        "btrfs-model stream ls full.stream monday.stream --json",
        "btrfs-model stream cat full.stream monday.stream dir/file > file",
        "zstdcat full.stream.zst | btrfs-model stream tar - -o full.tar",
    ),
)
@click.argument("what", type=click.Choice(["verify", "ls", "cat", "tar"]))
@click.argument("files", nargs=-1, required=True, metavar="FILE... [PATH]")
@click.option("--snapshot", metavar="NAME",
              help="Of ls, cat and tar: which of the snapshots.  [default: the last]")  # fmt: skip
@click.option("--target", type=click.Path(path_type=Path), metavar="IMAGE",
              help="The image of the receiver, with the parent of the first stream. It stays as it "
              "is.")  # fmt: skip
@output_option("Of tar: the archive; of verify: the table, as Parquet, or CSV for a name in .csv.",
               default=None)  # fmt: skip
@json_option("Of verify and ls: one JSON object a line.")
@click.pass_context
def stream(
    context: click.Context,
    what: str,
    files: tuple[str, ...],
    snapshot: str | None,
    target: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Look into stored send streams, without an image and without a mount.

    FILE is a stream, or several one behind the other; - is standard input. They are received in
    their order, in memory, so an incremental one comes after its parent, or has it in --target.

    verify shows each stream: whether it is complete, whole and in its place, and at which command a
    receive ends. ls, cat and tar show the files of the last snapshot: cat that at PATH, tar all of
    them. Of a stream that is cut off they show what is there. The status is 1 where something is
    wrong with a stream.
    """
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.questions.receive.stored import stored_streams

    path = ""
    if what == "cat":
        *streams, path = files
        if not streams:
            raise click.UsageError("Missing argument: stream cat FILE... PATH is wanted")
        files = tuple(streams)
    _refuse(what, snapshot, output, as_json)
    with ExitStack() as stack:
        there = None if target is None else stack.enter_context(WritableFilesystem.load(target))
        sources = [sys.stdin.buffer if name == "-" else name for name in files]
        with progress() as step:
            step("receiving in memory")
            stored = stack.enter_context(stored_streams(*sources, target=there))
        if what == "verify":
            give_table(stored.table, output, as_json=as_json,
                       narrow=("file", "snapshot", "parent", "bytes", "problem"))  # fmt: skip
        else:
            for problem in stored.problems:
                aside(problem)
            wanted = _snapshot(stored.subvolumes, snapshot)
            if what == "ls":
                print_listing(stored.fs, wanted, as_json=as_json)
            elif what == "cat":
                write_content(stored.fs, wanted, path)
            else:
                write_archive(stored.fs, wanted, output)
        status = 1 if stored.problems else 0
    context.exit(status)


def _refuse(what: str, snapshot: str | None, output: Path | None, as_json: bool) -> None:
    """Refuse options that are not of the command."""
    given = {
        "--snapshot": snapshot is not None and what == "verify",
        "--out": output is not None and what not in ("verify", "tar"),
        "--json": as_json and (what not in ("verify", "ls") or output is not None),
    }
    for name, is_wrong in given.items():
        if is_wrong:
            beside = " beside --out" if name == "--json" and output is not None else ""
            raise click.UsageError(f"stream {what} has no {name}{beside}")


def _snapshot(received: list[str], wanted: str | None) -> str:
    """Return the subvolume that was asked for, of those that were received."""
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.base.nearest import did_you_mean

    if not received:
        raise BtrfsModelError("nothing of these streams could be received")
    if wanted is None:
        return received[-1]
    if wanted not in received:
        raise BtrfsModelError(f"no stream has snapshot {wanted}{did_you_mean(wanted, received)}")
    return wanted
