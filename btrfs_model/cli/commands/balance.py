# SPDX-License-Identifier: GPL-2.0-only
"""The command ``balance``: what a balance would do."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.cli.common import echo, print_json_lines, print_table
from btrfs_model.cli.flags import Command, json_option


@click.command(
    cls=Command,
    examples=(
        "btrfs-model balance disk.img --dry-run",
        "btrfs-model balance disk.img -d usage=50 -m usage=30 --dry-run",
        "btrfs-model balance disk.img -d usage=10,limit=2 --dry-run --json",
    ),
)
@click.argument("image", type=click.Path(path_type=Path))
@click.option("-d", "--data", metavar="FILTERS",
              help="Chunks of data, those that all filters leave; '' leaves all.")  # fmt: skip
@click.option("-m", "--metadata", metavar="FILTERS", help="Those of metadata and of the system.")
@click.option("-s", "--system", metavar="FILTERS", help="Those of the system, with --force.")
@click.option("-f", "--force", is_flag=True, help="Metadata may get fewer copies.")
@click.option("--dry-run", is_flag=True, required=True, help="Write nothing; needs to be said.")
@json_option("One JSON object a line, the last one with the sums.")
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

    if not dry_run:
        raise click.UsageError("say --dry-run: images are not balanced in place")
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
