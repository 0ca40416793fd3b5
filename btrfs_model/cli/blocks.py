# SPDX-License-Identifier: GPL-2.0-only
"""Commands about tree blocks: ``reads``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import TextIO

import click

from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.sizes import size
from btrfs_model.cli.common import (
    Command,
    Images,
    behaviour_option,
    image_argument,
    json_option,
    machine_option,
    one_output,
    parent_option,
    parquet_option,
    print_table,
    progress,
    subvolume_argument,
    whole_number,
    write_parquet,
)


def _print_devices(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from btrfs_model.cost.device import names, read_file

        for name in names():
            click.echo(f"{name}\t{read_file(name)['title']}")
        ctx.exit()


def _pairs(option: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Split arguments NAME=VALUE."""
    pairs = [value.partition("=") for value in values]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise click.BadParameter(f"{name!r} is not NAME=VALUE", param_hint=option)
    return [(name, value) for name, _, value in pairs]


def _size(name: str, text: str) -> int:
    """Return a limit, of bytes or of entries."""
    try:
        return size(text)
    except ValueError as error:
        raise click.BadParameter(f"{name}: {error}", param_hint="--limits") from None


def _value(text: str) -> float | str:
    """Return a number where the text is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _think(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Refuse what is no time of a leaf."""
    if value is not None:
        from btrfs_model.cost.reading import MOST_US

        if not 0 <= value < MOST_US:
            raise click.BadParameter(f"{value:g} is not in [0, {MOST_US:,})")
    return value


def _limits(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """Return the limits of a kernel that are named."""
    from btrfs_model.limits import NAMES, Limits

    limits = {name: _size(name, value) for name, value in _pairs("--limits", values)}
    for name in limits:
        if name not in NAMES:
            raise click.BadParameter(
                f"no limit {name!r}: there is {', '.join(NAMES)}{did_you_mean(name, NAMES)}",
                param_hint="--limits",
            )
    try:
        Limits(**limits)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--limits") from None
    return limits


def _parameters(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> dict[str, float | str]:
    """Return the parameters of a device that are named."""
    return {name: _value(value) for name, value in _pairs("--set", values)}


limits_option = click.option(
    "--limits",
    "--readahead",
    "limits",
    multiple=True,
    callback=_limits,
    metavar="LIMIT=N",
    help="Change a limit of the kernel (K, M, G, T). Readahead, in bytes. Full send: "
    "always_leaves (its window), always_nodes (the same above leaves). Listing, and full send "
    "without the commit send-reada-always: distance, near. Send with a parent: compare_leaves, "
    "compare_nodes. Numbers: siblings (a search looks at one more of them); of a send name_cache, "
    "name_cache_kept, dir_created_cache, dir_utimes_cache, backref_cache, backref_cache_roots, "
    "clone_refs; of FIEMAP fiemap_entries, fiemap_prev_extents.",
)
parameters_option = click.option(
    "--set",
    "parameters",
    multiple=True,
    callback=_parameters,
    metavar="NAME=VALUE",
    help="Another parameter of the device, such as queue_depth=1, elevator=none or rpm=5400.",
)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model reads disk.img snap1",
        "btrfs-model reads disk.img snap2 -p snap1 --mounted rw --json | jq .physical",
        "btrfs-model reads disk.img snap1 --behaviour v5.12 --parquet 5.12.parquet",
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
@click.option(
    "--device", metavar="NAME|FILE",
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
@parquet_option("Write the table there instead of printing it.")
def reads(
    image: Images,
    subvolume: str,
    behaviour: str,
    parent: str | None,
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
    parquet: Path | None,
) -> None:
    """Show the tree blocks that a cold kernel reads to send a subvolume, in order.

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
    from btrfs_model.questions.reads.cold import blocks_after_mount
    from btrfs_model.questions.reads.walk import reads as reads_of

    if parent is not None and readdir is not None:
        raise click.UsageError("--parent goes with a send, not with --readdir")
    one_output(as_json, parquet)
    if device is None and (parameters or think is not None or machine is not None or total):
        raise click.UsageError("--set, --think, --machine and --total go with --device")
    if machine is not None and (think is not None or readdir is not None):
        raise click.UsageError("--machine goes with a send, and not with --think")
    chosen = Behaviour.parse(behaviour)
    start = _addresses(cached)
    # to import it takes as long as half a million reads, and can be done beside them
    Thread(target=import_module, args=("pandas",)).start()
    with image.open() as fs, progress() as step:
        step(f"reading {subvolume}")
        if mounted is not None:
            opened = [fs.subvolume(name) for name in (subvolume, parent) if name is not None]
            start |= blocks_after_mount(fs, opened, chosen, writable=mounted == "rw")
        table = reads_of(
            fs, subvolume, behaviour=chosen, parent=parent, readdir=readdir, cached=start,
            limits=limits, device=device, think=think, parameters=parameters,
            machine=machine,
        )  # fmt: skip
    time = table.attrs.pop("time", None)
    if total:
        import pandas as pd

        table = pd.DataFrame([{"device": device, "reads": len(table), **table.attrs}])
    else:
        table = table.reset_index()
    if parquet is not None:
        write_parquet(table, parquet)
    else:
        print_table(table, as_json=as_json)
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
