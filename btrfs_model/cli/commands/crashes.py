# SPDX-License-Identifier: GPL-2.0-only
"""The command ``crashes``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from btrfs_model.cli.commands.scripts import chosen_script
from btrfs_model.cli.common import aside, give_table, note, print_table
from btrfs_model.cli.flags import (
    SIZE,
    Command,
    json_option,
    one_output,
    output_option,
)

_OF_SEQUENCES: Final = ("first", "parts", "store", "jobs", "scheduler")
_OF_ONE: Final = ("replay", "reorder", "torn", "size", "images", "number", "at")


@click.command(
    cls=Command,
    examples=(
        "btrfs-model crashes save.sh",
        "btrfs-model crashes save.sh --behaviour v6.1 --behaviour v7.2 --images broken",
        "btrfs-model crashes save.json --at fsync --json",
        "btrfs-model crashes save.sh --reorder --torn",
        "btrfs-model crashes --enumerate 1 --behaviour v6.1 --behaviour v7.2",
        "btrfs-model crashes --enumerate 2 --store two.crashes --jobs 2",
        "btrfs-model crashes --rules",
    ),
)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--behaviour", "behaviours", multiple=True, metavar="B",
              help="A kernel, as of `btrfs-model patches`; several at once.")  # fmt: skip
@click.option("--replay", metavar="B", help="The kernel that mounts what a crash left.  "
              "[default: that which ran]")  # fmt: skip
@click.option("--at", type=click.Choice(("every-write", "flush", "fsync")), default="every-write",
              show_default=True, help="Where it crashes.")  # fmt: skip
@click.option("--reorder", is_flag=True,
              help="Of the writes between two flushes let each subset come through.")  # fmt: skip
@click.option("--torn", is_flag=True, help="Let a part of a write come through.")
@click.option("--size", default="256M", show_default=True, type=SIZE, metavar="SIZE",
              help="Of a device.")  # fmt: skip
@click.option("--number", default=0, metavar="N", help="Which script, where FILE has several.")
@click.option("--images", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Write devices there that broke a promise, as crashes left them.")  # fmt: skip
@click.option("--enumerate", "length", type=click.IntRange(1, 3), metavar="N",
              help="All sequences of N operations on a small tree, in place of FILE; of 3, "
              "sampled ones.")  # fmt: skip
@click.option("--first", default=0, metavar="PART", help="Of --enumerate: the first part.")
@click.option("--parts", type=click.IntRange(1), metavar="N",
              help="Of --enumerate: so many parts of 128 sequences.")  # fmt: skip
@click.option("--store", type=click.Path(path_type=Path), metavar="DIR",
              help="Of --enumerate: a folder that remembers parts, to go on later.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(1), metavar="N",
              help="Of --enumerate: processes.  [default: one a processor]")  # fmt: skip
@click.option("--scheduler", metavar="S", help="Of --enumerate: as of `btrfs-model sweep`.")
@click.option("--rules", is_flag=True, help="List what is promised, and by whom.")
@output_option("Write the table of states there, or of causes.", name="output")
@json_option("One JSON object a line.")
@click.pass_context
def crashes(
    context: click.Context, file: Path | None, behaviours: tuple[str, ...], replay: str | None,
    at: str, reorder: bool, torn: bool, size: int, number: int, images: Path | None,
    length: int | None, first: int, parts: int | None, store: Path | None, jobs: int | None,
    scheduler: str | None, rules: bool, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Look at every state that a crash of a workload may leave, beside what was promised.

    FILE is a scenario as of `btrfs-model run` (.json, .jsonl), or a shell script as of
    `btrfs-model script`. It crashes after each write to its device. The next mount replays the log,
    a check looks at all of it, and what is there is compared with what processes saw and what they
    made to last: --rules lists the promises, POSIX' and those that btrfs keeps beyond them. A state
    that no mount can tell from another one is looked at once.

    A script runs twice. In the second run all is written back after each call, to see what
    processes see.

    With --enumerate: which kernel breaks which promise in which sequences of create, rename, write,
    fsync ..., and the commits by which that came and went.
    """
    one_output(as_json, output)
    if sum([file is not None, length is not None, rules]) != 1:
        raise click.UsageError("one of FILE, --enumerate and --rules")
    _only(context, _OF_SEQUENCES if length is None else _OF_ONE,
          "--enumerate" if length is None else "FILE")  # fmt: skip
    if rules:
        _rules(output, as_json=as_json)
    elif length is not None:
        _enumerate(length, behaviours, first, parts, store, jobs, scheduler, output, as_json)
    else:
        assert file is not None
        _one(file, behaviours, replay, at, reorder, torn, size, number, images, output, as_json)


def _only(context: click.Context, names: Sequence[str], of: str) -> None:
    """Refuse options that belong to another way of asking."""
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} goes with {of}")


def _rules(output: Path | None, *, as_json: bool) -> None:
    import pandas as pd

    from btrfs_model.experiments.crashes.promises import RULES

    rows = [(name, *rule) for name, rule in RULES.items()]
    give_table(pd.DataFrame(rows, columns=["rule", "whose", "says", "source"]), output,
               as_json=as_json)  # fmt: skip


def _enumerate(
    length: int, behaviours: tuple[str, ...], first: int, parts: int | None, store: Path | None,
    jobs: int | None, scheduler: str | None, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    from btrfs_model.experiments.crashes.enumerate import enumerate_crashes

    try:
        found = enumerate_crashes(length, behaviours=behaviours, first=first, parts=parts,
                                  store=store, jobs=jobs, scheduler=scheduler)  # fmt: skip
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    if not as_json and output is None:
        print_table(found.totals)
        click.echo()
    give_table(found.table, output, as_json=as_json)


def _one(
    file: Path, behaviours: tuple[str, ...], replay: str | None, at: str, reorder: bool,
    torn: bool, size: int, number: int, images: Path | None, output: Path | None, as_json: bool,
) -> None:  # fmt: skip
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.experiments.crashes.api import crashes as look
    from btrfs_model.patches import KERNEL
    from btrfs_model.shell.parse import ShellSyntaxError
    from btrfs_model.shell.state import ShellError

    try:
        found = look(_workload(file, number), behaviours=behaviours or (KERNEL,),
                     replay=replay or "", at=at, reorder=reorder, torn=torn, size=size)  # fmt: skip
    except (ShellError, ShellSyntaxError) as error:
        raise BtrfsModelError(f"{file}: {error}") from error
    if found.status:
        aside(found.stderr.decode(errors="replace").rstrip())
        note(f"the script ended with status {found.status}")
    give_table(found.table, output, as_json=as_json)
    if not as_json and output is None and len(found.broken):
        click.echo()
        print_table(found.broken.drop(columns="what"))
    aside(f"{found.states:,} states, {found.outcomes} outcomes, "
          f"{len(found.broken):,} broken promises")  # fmt: skip
    if images is not None:
        for path in found.save(images):
            aside(f"wrote {path}")


def _workload(file: Path, number: int) -> Path | str:
    from btrfs_model.experiments.crashes.api import SCENARIOS

    return file if file.name.endswith(SCENARIOS) else chosen_script(file, number).text
