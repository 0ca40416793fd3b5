# SPDX-License-Identifier: GPL-2.0-only
"""Commands about tree blocks: ``reads``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from btrfs_model.cli.common import asked_for, give_table, progress
from btrfs_model.cli.flags import (
    Command,
    Images,
    behaviour_option,
    clones_option,
    device_option,
    image_argument,
    json_option,
    limits_option,
    machine_option,
    one_output,
    parameters_option,
    parent_option,
    subvolume_argument,
    table_option,
    whole_number,
)

if TYPE_CHECKING:
    import pandas as pd


def _print_devices(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from btrfs_model.cost.device import names, read_file

        for name in names():
            click.echo(f"{name}\t{read_file(name)['title']}")
        ctx.exit()


def _think(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse what is no time of a leaf."""
    if value is not None:
        from btrfs_model.cost.reading import MOST_US

        if not 0 <= value < MOST_US:
            raise click.BadParameter(f"{value:g} is not in [0, {MOST_US:,})")
    return value


@click.command(
    cls=Command,
    examples=(
        "btrfs-model reads disk.img snap1",
        "btrfs-model reads disk.img snap2 -p snap1 --mounted rw --json | jq .physical",
        "btrfs-model reads disk.img snap1 --behaviour v5.12 --out 5.12.parquet",
        "btrfs-model reads disk.img snap1 --readdir some/dir",
        "btrfs-model reads disk.img snap1 --device deskstar-7k500 --total",
        "btrfs-model reads disk.img snap1 --limits always_leaves=1M --json",
        "btrfs-model reads disk.img snap1 --device hp97560 --set queue_depth=8",
    ),
)
@image_argument
@subvolume_argument
@behaviour_option()
@parent_option
@clones_option
@click.option("--readdir", metavar="DIR", help="List this directory (. is the top) instead.")
@click.option(
    "--mounted",
    type=click.Choice(["rw", "ro"]),
    help="Start with the blocks that such a mount, and opening the subvolumes, have read.",
)
@click.option(
    "--cached",
    type=click.File(),
    metavar="FILE",
    help="Start with these blocks in memory: a logical address in each line.",
)
@limits_option
@device_option(
    help="Do the reads on this device: a name of --devices, or a file NAME.toml.",
)  # fmt: skip
@parameters_option
@click.option(
    "--think",
    type=float,
    callback=_think,
    metavar="US",
    help="Microseconds that the kernel computes for each leaf.  [default: what its work costs]",
)
@machine_option
@click.option("--total", is_flag=True, help="Print the totals of the reads on the device instead.")
@click.option(
    "--devices",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_devices,
    help="Print the names of the devices and exit.",
)
@json_option("One JSON object a line.")
@table_option()
def reads(
    image: Images,
    subvolume: str,
    behaviour: str,
    parent: str | None,
    clones: tuple[str, ...],
    readdir: str | None,
    mounted: str | None,
    cached: TextIO | None,
    limits: dict[str, int],
    device: str | None,
    parameters: dict[str, float | str],
    think: float | None,
    machine: str | None,
    total: bool,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show the tree blocks that a cold kernel reads to send a subvolume, in order.

    The parent is added to the clone sources, and with -c alone picked among them, as `btrfs send`
    does.

    SEQUENCE counts submissions. Each block is read on demand or ahead. PHYSICAL is the byte of the
    first copy. USED says whether the walk came to the block. Without --mounted or --cached nothing
    is in memory at the start.

    On a device ISSUED, DONE and NEEDED are nanoseconds from the start. The kernel waits for a block
    that it reads on demand, and for one that it needs before it is there (NEEDED before DONE).
    NEEDED is -1 for a block that it never needs. What the kernel computes between the reads of a
    send is what its work costs on --machine; the time is told on standard error, where that is
    a terminal or a machine is named. What a listing computes has no cost, and is left out.
    """
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.cost.device import load
    from btrfs_model.questions.reads.cold import blocks_after_mount
    from btrfs_model.questions.reads.walk import readdir_reads
    from btrfs_model.questions.reads.walk import reads as reads_of

    if (parent is not None or clones) and readdir is not None:
        raise click.UsageError("--parent and --clone-source go with a send, not with --readdir")
    one_output(as_json, output)
    if device is None and (parameters or think is not None or machine is not None or total):
        raise click.UsageError("--set, --think, --machine and --total go with --device")
    if machine is not None and (think is not None or readdir is not None):
        raise click.UsageError("--machine goes with a send, and not with --think")
    chosen = Behaviour.parse(behaviour)
    start = _addresses(cached)
    drive = None if device is None else load(device, parameters)
    with image.open() as fs, progress() as step:
        step(f"reading {subvolume}")
        sent, base, sources = fs.subvolume(subvolume), None, None
        if readdir is None:
            sent, base, sources = asked_for(fs, subvolume, parent, clones)
        if mounted is not None:
            opened = {one.id: one for one in (sent, *(sources or ()))}.values()
            start |= blocks_after_mount(fs, opened, chosen, writable=mounted == "rw")
        if readdir is not None:
            found = readdir_reads(fs, sent, readdir, cached=start, limits=limits)
        else:
            found = reads_of(fs, sent, behaviour=chosen, parent=base, clone_sources=sources,
                             cached=start, limits=limits)  # fmt: skip
        table: pd.DataFrame = found
        if drive is not None:
            table = found.on(drive, think=think, machine=machine)
    time = table.attrs.pop("time", None)
    if total:
        import pandas as pd

        table = pd.DataFrame([{"device": device, "reads": len(table), **table.attrs}])
    else:
        table = table.reset_index()
    give_table(table, output, as_json=as_json)
    if time is not None and (machine is not None or sys.stderr.isatty()):
        click.echo(f"send: {time['text']}", err=True)
        for line in time["split"]:
            click.echo(f"  {line}", err=True)


def _addresses(file: TextIO | None) -> set[int]:
    """Read logical addresses, one in each line."""
    try:
        return {whole_number(line.strip(), 0) for line in file or () if line.strip()}
    except (UnicodeDecodeError, click.BadParameter) as error:
        raise click.BadParameter(f"not an address: {error}", param_hint="--cached") from None
