# SPDX-License-Identifier: GPL-2.0-only
"""Commands about send streams: ``send``, ``plan``, ``receive``, ``dump-stream``."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.base.printable import printable
from btrfs_model.cli.common import (
    aside,
    asked_for,
    print_table,
    progress,
    stdout,
    write_table,
    write_work,
)
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    Flag,
    Images,
    behaviour_option,
    clones_option,
    image_argument,
    images_before,
    json_option,
    limits_option,
    machine_option,
    one_output,
    parent_option,
    subvolume_argument,
    table_option,
    work_option,
    written_image_argument,
)
from btrfs_model.cli.sinks import opened
from btrfs_model.cli.times import print_profile, print_time, timed_on

if TYPE_CHECKING:
    from btrfs_model.questions.send.ioctl import SendResult
    from btrfs_model.volume.filesystem import Filesystem

_UUID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE)


proto_option = click.option(
    "--proto",
    type=click.IntRange(0, 3),
    metavar="N",
    help="Version of the stream, 0 for the highest there is.  [default: 1]",
)
compressed_option = click.option(
    "--compressed-data",
    is_flag=True,
    help="Send compressed extents as they are; means --proto 2 unless that is given.",
)


def _version(proto: int | None, *, compressed: bool) -> int:
    """Return the version of the stream that was asked for."""
    if compressed and proto == 1:
        raise click.UsageError("--compressed-data needs --proto 2 or higher")
    if proto is None:
        return 2 if compressed else 1
    return proto


@click.command(
    cls=Command,
    examples=(
        "btrfs-model send disk.img snap1 -f full.stream",
        "btrfs-model send disk.img snap1 --behaviour v4.16 | btrfs receive --dump",
        "btrfs-model send disk.img snap1 --proto 2 --compressed-data -f v2.stream",
        "btrfs-model send disk.img snap1 --work work.json > /dev/null",
        "btrfs-model send disk.img snap2 -p snap1 --explain summary -f /dev/null",
        "btrfs-model send disk.img snap2 -p snap1 --profile -f /dev/null",
        "btrfs-model send disk.img snap2 -p snap1 --estimate",
        "btrfs-model send disk.img snap1 --from-byte 1048576 >> interrupted.stream",
        "btrfs-model send disk.img snap1 -o full.stream --split 4G",
    ),
)
@image_argument
@subvolume_argument
@parent_option
@clones_option
@click.option("-f", "-o", "--out", "out", cls=Flag, was=("--file",),
              type=click.Path(path_type=Path), metavar="FILE",
              help="Write the stream to FILE instead of standard output.")  # fmt: skip
@proto_option
@click.option("--no-data", "no_file_data", is_flag=True,
              help="Send no file data, only which ranges changed: no_file_data.")  # fmt: skip
@compressed_option
@behaviour_option()
@limits_option
@work_option("Write how often each kernel function was called.")
@click.option("--explain", type=click.Choice(["summary", "commands", "sources"]),
              help="Say why each command is sent: added up, command by command, or what extents "
              "might be cloned from.")  # fmt: skip
@click.option("--profile", is_flag=True, help="Say where the time goes, by kernel function.")
@click.option("--estimate", is_flag=True,
              help="Tell the bytes of the stream, exactly, in place of it; no file data are "
              "read.")  # fmt: skip
@click.option("--from-byte", type=SIZE, default=None, metavar="N",
              help="Write from byte N on alone: the rest of what was interrupted.")  # fmt: skip
@click.option("--split", type=SIZE, default=None, metavar="SIZE",
              help="Write files of at most SIZE: FILE.000, FILE.001 and so on, and FILE.json with "
              "the sha256 of each.")  # fmt: skip
@json_option("With --explain and --profile: one JSON object a line.")
@machine_option
def send(
    image: Images,
    subvolume: str,
    parent: str | None,
    clones: tuple[str, ...],
    out: Path | None,
    proto: int | None,
    no_file_data: bool,
    compressed_data: bool,
    behaviour: str,
    limits: dict[str, int],
    work: Path | None,
    explain: str | None,
    profile: bool,
    estimate: bool,
    from_byte: int | None,
    split: int | None,
    as_json: bool,
    machine: str | None,
) -> None:
    """Write the send stream of a read-only subvolume, byte for byte as the kernel does.

    SUBVOL is a path from the top of the filesystem or an id. The parent is added to the clone
    sources, and with -c alone the parent is picked among them, as `btrfs send` does. Where the
    kernel fails half way, the part of the stream before that is written all the same.

    With --explain and --profile, tables go to standard error or, when the stream goes to a file, to
    standard output; on a terminal there need not be a stream. With --machine or --profile, and on a
    terminal with --work, the time is told there too, all that is read being in memory.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.questions.send.ioctl import send as send_subvolume

    if as_json and explain is None and not profile:
        raise click.UsageError("--json goes with --explain and --profile")
    version = _version(proto, compressed=compressed_data)
    parts = from_byte is not None or split is not None
    if estimate and (explain is not None or out is not None or parts):
        raise click.UsageError("--estimate makes no stream for --out, --explain or a part of it")
    if split is not None and (out is None or from_byte is not None or not split):
        raise click.UsageError("--split wants a size and --out, and goes not with --from-byte")
    if estimate or (out is None and (explain is not None or profile) and sys.stdout.isatty()):
        out = Path(os.devnull)
    if out is None and sys.stdout.isatty():
        raise BtrfsModelError("not dumping send stream into a terminal, redirect it into a file")
    chosen = Behaviour.parse(behaviour)
    computes = timed_on(machine, work, wanted=profile)
    with image.open() as fs:
        sent, base, sources = asked_for(fs, subvolume, parent, clones)
        with opened(out, from_byte or 0, split) as to, progress() as step:
            step(f"sending {subvolume}")
            result = send_subvolume(
                fs, sent, base, sources, behaviour=chosen, limits=limits,
                proto=version,
                no_file_data=no_file_data, compressed=compressed_data, explain=explain is not None,
                estimate=estimate, to=to,
            )  # fmt: skip
        write_work(work, result.work)
    if estimate:
        click.echo(result.size)
    if result.causes is not None:
        _print_causes(result, explain, as_json=as_json, err=out is None)
    if computes is not None:
        print_time("send", computes, result.amounts, err=out is None)
        if profile:
            print_profile(computes, result.amounts, as_json=as_json, err=out is None)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model plan disk.img",
        "btrfs-model plan disk.img snap1 snap2 --all --json",
        "btrfs-model plan disk.img --target backup.img --compressed-data",
        "btrfs-model plan disk.img --target uuids.txt --clones",
    ),
)
@images_before("snapshots", "[SNAP]...")
@click.option("--target", type=click.Path(path_type=Path), metavar="IMAGE|FILE",
              help="What the receiver has: its image, or a file with the UUIDs from which "
              "subvolumes were received there.")  # fmt: skip
@click.option("--all", "all_sends", is_flag=True, help="Show every send, not the chain alone.")
@click.option("--clones", is_flag=True,
              help="Look at each send also with all older snapshots as clone sources.")  # fmt: skip
@proto_option
@compressed_option
@behaviour_option()
@limits_option
@json_option("One JSON object a line.")
@table_option("Write all sends as a table")
@machine_option
def plan(
    image: Images,
    snapshots: tuple[str, ...],
    target: Path | None,
    all_sends: bool,
    clones: bool,
    proto: int | None,
    compressed_data: bool,
    behaviour: str,
    limits: dict[str, int],
    as_json: bool,
    output: Path | None,
    machine: str | None,
) -> None:
    """Tell the sizes of all sends between snapshots, and which of them are smallest altogether.

    All read-only subvolumes without SNAP. Sizes are exact, and no file data are read. Each snapshot
    is sent once, whole or from a parent that the receiver has by then; no other chain has fewer
    bytes. `needs` is the UUID by which the receiver has to find the parent. Seconds are those of
    the kernel with all in memory, without the way to the receiver.
    """
    from btrfs_model.questions.send.plan import plan as plan_sends

    one_output(as_json, output)
    version = _version(proto, compressed=compressed_data)
    with ExitStack() as stack:
        there = None if target is None else stack.enter_context(_target(target))
        fs = stack.enter_context(image.open())
        step = stack.enter_context(progress())
        step("looking at all sends")
        found = plan_sends(
            fs, *snapshots, target=there, clones=clones, behaviour=behaviour, limits=limits,
            proto=version,
            compressed=compressed_data, machine=machine,
        )  # fmt: skip
    if output is not None:
        write_table(found.table, output)
    else:
        print_table(found.table if all_sends else found.chain, as_json=as_json,
                    narrow=("snapshot", "parent", "bytes", "seconds", "refused"))  # fmt: skip
    sent = f"{len(found.chain)} sends, {found.bytes:,} bytes in all"
    aside(f"{sent}; there already: {', '.join(found.there)}" if found.there else sent)


@contextmanager
def _target(path: Path) -> Iterator[Filesystem | list[str]]:
    """Open what a receiver has: an image, or a text with UUIDs."""
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.volume.device.devices import is_device
    from btrfs_model.volume.filesystem import Filesystem

    if path.is_dir() or is_device(path):
        with Filesystem.open(path) as fs:
            yield fs
        return
    uuids = _UUID.findall(path.read_text(errors="replace"))
    if not uuids:
        raise BtrfsModelError(f"{path}: neither a btrfs image nor a text with UUIDs")
    yield uuids


def _print_causes(result: SendResult, what: str | None, *, as_json: bool, err: bool) -> None:
    """Print why the commands of a stream were sent."""
    import pandas as pd

    from btrfs_model.questions.send.explain import summaries

    causes = result.causes
    assert causes is not None
    if what == "sources":
        assert result.sources is not None
        print_table(result.sources, as_json=as_json, err=err,
                    narrow=("path", "file_offset", "source", "reason"))  # fmt: skip
        return
    if what == "commands":
        narrow = ["offset", "length", "command", "path", "cause", "item_type", "change"]
        print_table(causes, as_json=as_json, narrow=narrow, err=err)
        return
    for title, table in summaries(causes, sources=result.sources).items():
        print_table(table, as_json=as_json, title=title, err=err)
    # the header of the stream is in it
    total = pd.DataFrame({"total": ["stream"], "commands": [len(causes)], "bytes": [result.size]})
    print_table(total, as_json=as_json, title="in all", err=err)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model receive copy.img -f full.stream",
        "btrfs-model send disk.img snap2 -p snap1 | btrfs-model receive copy.img",
        "btrfs-model receive copy.img backups -f full.stream --work calls.json",
    ),
)
@written_image_argument
@click.argument("directory", metavar="[DIR]", default="")
@click.option("-f", "--file", "stream", type=click.Path(path_type=Path), metavar="FILE",
              help="Read the stream from FILE instead of standard input.")  # fmt: skip
@work_option("Write which system calls `btrfs receive` makes for the stream.")
@machine_option
def receive(
    image: Path, directory: str, stream: Path | None, work: Path | None, machine: str | None
) -> None:
    """Apply one or more send streams to an image, as `btrfs receive` does.

    DIR is where the subvolumes are made, a path from the top of the filesystem. The image is
    replaced as a whole in the end: when a command of the stream fails, it stays as it was. With
    --machine, and on a terminal with --work, the time that `btrfs receive` takes is told too.
    """
    from btrfs_model.mount.writable import WritableFilesystem
    from btrfs_model.questions.receive.api import receive as receive_stream

    computes = timed_on(machine, work)
    with WritableFilesystem.load_to_replace(image) as fs, progress() as step:
        step(f"receiving into {image}")
        result = receive_stream(fs, sys.stdin.buffer if stream is None else stream, directory)
        fs.replace()
    for path in result.subvolumes:
        aside(f"At subvol {printable(path)}")
    write_work(work, result.calls)
    if computes is not None:
        print_time("receive", computes, result.calls)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model dump-stream full.stream",
        "btrfs-model send disk.img snap1 | btrfs-model dump-stream -",
        "btrfs-model dump-stream full.stream --json | jq -r .command | sort | uniq -c",
    ),
)
@click.argument("stream", type=click.Path(path_type=Path, allow_dash=True))
@json_option("One JSON object a line.")
@click.option("--data", is_flag=True, help="With --json: the data of writes too, in base64.")
def dump_stream(stream: Path, as_json: bool, data: bool) -> None:
    """Show the commands of a send stream, in the text of `btrfs receive --dump`.

    STREAM is a file, or - for standard input. Commands before a damaged place are shown, then the
    error names the byte. On a terminal the text is that of btrfs-progs 6.9.1 and later, which
    escape all names and values.
    """
    from btrfs_model.stream.dump import dump_json, dump_text

    if data and not as_json:
        raise click.UsageError("--data goes with --json")
    source = sys.stdin.buffer if str(stream) == "-" else stream
    out = stdout()
    try:
        if as_json:
            dump_json(source, out, data=data)
        else:
            dump_text(source, out, escape_all=sys.stdout.isatty())
    finally:
        out.flush()
