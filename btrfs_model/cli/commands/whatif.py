# SPDX-License-Identifier: GPL-2.0-only
"""Commands about what would be; they write nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.cli.common import echo, print_json_lines, print_table
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    Images,
    behaviour_option,
    device_option,
    image_argument,
    json_option,
    machine_option,
)

if TYPE_CHECKING:
    from btrfs_model.questions.usage.rewritten import RewritePlan

one_image_argument = click.argument("image", type=click.Path(path_type=Path))
dry_run_option = click.option(
    "--dry-run", is_flag=True, required=True, help="Write nothing; needs to be said."
)
sums_option = json_option("One JSON object a line, the last one with the sums.")
files_option = click.option("--files", is_flag=True, help="A row for each file that changes.")


def _check_dry(dry_run: bool) -> None:
    if not dry_run:
        raise click.UsageError("say --dry-run: no image is changed in place")


@click.command(
    cls=Command,
    examples=(
        "btrfs-model balance disk.img --dry-run",
        "btrfs-model balance disk.img -d usage=50 -m usage=30 --dry-run",
        "btrfs-model balance disk.img -d usage=10,limit=2 --dry-run --json",
    ),
)
@one_image_argument
@click.option("-d", "--data", metavar="FILTERS",
              help="Chunks of data, those that all filters leave; '' leaves all.")  # fmt: skip
@click.option("-m", "--metadata", metavar="FILTERS", help="Those of metadata and of the system.")
@click.option("-s", "--system", metavar="FILTERS", help="Those of the system, with --force.")
@click.option("-f", "--force", is_flag=True, help="Metadata may get fewer copies.")
@dry_run_option
@sums_option
def balance(
    image: Path,
    data: str | None,
    metadata: str | None,
    system: str | None,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Tell which chunks a balance would move, and what is unallocated then.

    FILTERS are those of `btrfs balance start`: usage, profiles, devid, drange, vrange, limit,
    stripes, convert and soft. The balance is carried out in memory, as Linux 6.18 does it. Without
    filters all chunks move.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.questions.usage.balanced import balance_plan

    _check_dry(dry_run)
    try:
        plan = balance_plan(image, data, metadata, system, force=force)
    except BtrfsModelError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error).replace("\nERROR:", ";")) from None
    sums = {
        "relocated": int(plan.table.moved.sum()), "considered": plan.considered,
        "data": plan.data, "metadata": plan.metadata,
        "unallocated_before": plan.unallocated_before,
        "unallocated_after": plan.unallocated_after, "error": plan.error,
    }  # fmt: skip
    print_table(plan.table, as_json=as_json)
    if as_json:
        print_json_lines([sums])
        return
    echo(f"{sums['relocated']} of {plan.considered} chunks move, with {plan.data} bytes of data "
         f"and {plan.metadata} of metadata;\nunallocated: {plan.unallocated_before} bytes before, "
         f"{plan.unallocated_after} after")  # fmt: skip
    if plan.error is not None:
        echo(f"it ends in {plan.error}")


@click.command(
    cls=Command,
    examples=(
        "btrfs-model defragment disk.img --dry-run",
        "btrfs-model defragment disk.img home dir -t 1M --dry-run",
        "btrfs-model defragment disk.img -c zstd --files --dry-run --json",
    ),
)
@one_image_argument
@click.argument("subvolume", default="")
@click.argument("path", required=False)
@click.option("-t", "--target-extent-size", "threshold", type=SIZE, metavar="SIZE",
              help="Extents as large stay.  [default: 32M]")  # fmt: skip
@click.option("-c", "--compress", type=click.Choice(["zlib", "lzo", "zstd"]),
              help="Compress what is written.")  # fmt: skip
@files_option
@behaviour_option()
@machine_option
@dry_run_option
@sums_option
def defragment(
    image: Path,
    subvolume: str,
    path: str | None,
    threshold: int | None,
    compress: str | None,
    files: bool,
    behaviour: str,
    machine: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Tell what defragmentation costs: data, and the size of the next send.

    A snapshot of SUBVOLUME is taken in memory as it is, and another one when its files, or what is
    below PATH, were written anew. A row is a send of it: a full one, and from each snapshot of the
    subvolume that is there.
    """
    from btrfs_model.questions.usage.rewritten import defragment_plan

    _check_dry(dry_run)
    given = {} if threshold is None else {"threshold": threshold}
    plan = defragment_plan(image, subvolume, path, compress=compress or "", behaviour=behaviour,
                           machine=machine, **given)  # fmt: skip
    _print(plan, files=files, as_json=as_json)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model dedupe disk.img --dry-run",
        "btrfs-model dedupe disk.img home dir --block 4K --dry-run",
        "btrfs-model dedupe disk.img --files --dry-run --json",
    ),
)
@one_image_argument
@click.argument("subvolume", default="")
@click.argument("path", required=False)
@click.option("--block", type=SIZE, metavar="SIZE",
              help="Blocks that are compared.  [default: 128K]")  # fmt: skip
@files_option
@behaviour_option()
@machine_option
@dry_run_option
@sums_option
def dedupe(
    image: Path,
    subvolume: str,
    path: str | None,
    block: int | None,
    files: bool,
    behaviour: str,
    machine: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Tell what a dedupe frees, and the size of the next send.

    Blocks of the files of SUBVOLUME, or of what is below PATH, that hold the same are shared in
    memory. A row is a send of a snapshot of it, before and after: a full one, and from each
    snapshot of the subvolume that is there. What those keep is not freed.
    """
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.questions.usage.rewritten import dedupe_plan

    _check_dry(dry_run)
    given = {} if block is None else {"block": block}
    try:
        plan = dedupe_plan(image, subvolume, path, behaviour=behaviour, machine=machine, **given)
    except BtrfsModelError:
        raise
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    _print(plan, files=files, as_json=as_json)


def _print(plan: RewritePlan, *, files: bool, as_json: bool) -> None:
    """Print the sends, or the files, and the sums."""
    print_table(plan.files if files else plan.sends, as_json=as_json)
    if as_json:
        sums = {"files": len(plan.files), "shared": int(plan.files["shared"].sum()),
                "data": plan.data, "data_after": plan.data_after}  # fmt: skip
        print_json_lines([sums])
        return
    echo(f"{len(plan.files)} files change; data of all subvolumes: {plan.data} bytes before, "
         f"{plan.data_after} after")  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        "btrfs-model device-lost folder --devid 2",
        "btrfs-model device-lost a.img b.img c.img --devid 1 --devid 3 --chunks",
        "btrfs-model device-lost folder --devid 2 --json | jq 'select(.lost == .size)'",
    ),
)
@image_argument
@click.option(
    "--devid", "devids", type=click.IntRange(1), multiple=True, required=True, metavar="DEVID",
    help="A device that is lost; several with more of them.",
)  # fmt: skip
@click.option("--chunks", is_flag=True, help="A row for each chunk instead.")
@click.option("--trees", is_flag=True, help="A row for each tree that lost blocks instead.")
@behaviour_option()
@sums_option
def device_lost(
    image: Images,
    devids: tuple[int, ...],
    chunks: bool,
    trees: bool,
    behaviour: str,
    as_json: bool,
) -> None:
    """Tell which files are gone when devices are, and what mount is left.

    All devices are there yet. A row is a file, in each subvolume that has it: LOST are the bytes
    of it that cannot be read then. With `degraded` the rest can be mounted writable, or with `ro`
    besides read-only, or not at all.
    """
    from btrfs_model.questions.usage.lost import device_lost as look

    if chunks and trees:
        raise click.UsageError("--chunks and --trees are two tables: choose one")
    with image.open() as fs:
        left = look(fs, *devids, behaviour=behaviour)
    table = left.chunks if chunks else left.trees if trees else left.files
    print_table(table, as_json=as_json)
    sums = {
        "mount": left.mount, "files": len(left.files), "bytes": int(left.files["lost"].sum()),
        "chunks": int((left.chunks["lost"] > 0).sum()), "blocks": int(left.trees["lost"].sum()),
    }  # fmt: skip
    if as_json:
        print_json_lines([sums])
        return
    echo(f"mount: {left.mount}; lost: {sums['bytes']} bytes of {sums['files']} files, "
         f"{sums['blocks']} tree blocks,\nin {sums['chunks']} of {len(left.chunks)} "
         "chunks")  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        "btrfs-model mount-time disk.img --device deskstar-7k500",
        "btrfs-model mount-time disk.img --read-only --json",
        "btrfs-model mount-time disk.img --reads --json | jq 'select(.level == 0)'",
    ),
)
@image_argument
@device_option(help="Do the reads on this device: a name of `reads --devices`, or a file.")
@click.option("--read-only", is_flag=True, help="A mount with `ro`.")
@click.option("--reads", is_flag=True, help="A row for each tree block that is read, as it is.")
@json_option("One JSON object a line.")
def mount_time(
    image: Images, device: str | None, read_only: bool, reads: bool, as_json: bool
) -> None:
    """Tell which tree blocks a mount reads, with and without a block group tree.

    A row is the filesystem with one (yes) or without (no); IS says which it is. BLOCKS
    are all that are read, AHEAD those of them that are read ahead; on a device that takes SECONDS.
    Superblocks, a log and what the processor does are not in it.
    """
    import pandas as pd

    from btrfs_model.ondisk.keys import ObjectId
    from btrfs_model.questions.reads.mounting import mount_reads

    with image.open() as fs:
        has_one = ObjectId.BLOCK_GROUP_TREE in fs.trees
        sides = [None] if reads else [False, True]
        asked = [mount_reads(fs, writable=not read_only, block_group_tree=one) for one in sides]
        if device is not None:
            asked = [one.on(device) for one in asked]
    if reads:
        print_table(asked[0].table.reset_index(), as_json=as_json)
        return
    rows = []
    for side, one in zip(("no", "yes"), asked, strict=True):
        row = {"block_group_tree": side, "is": has_one == (side == "yes"), "blocks": len(one),
               "ahead": int((one["kind"] == "ahead").sum())}  # fmt: skip
        if device is not None:
            row["seconds"] = float(f"{one.attrs['seconds']:.3g}")
        rows.append(row)
    print_table(pd.DataFrame(rows), as_json=as_json)
