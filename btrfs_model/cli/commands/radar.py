# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model radar``: what kernels do that the model does not."""

from __future__ import annotations

from pathlib import Path

import click

from btrfs_model.base.whole_file import naming, whole_file
from btrfs_model.cli.common import aside, print_json_lines, print_table, progress
from btrfs_model.cli.flags import Command, json_option, output_option

_SEEDS = 10


@click.command(
    cls=Command,
    examples=(
        "btrfs-model radar --kernel sid --minutes 30",
        "btrfs-model radar --kernel sid --behaviour v6.18.44 -o page.html",
        "btrfs-model radar log replay --kernel native --seeds 50 --json",
    ),
)
@click.argument("what", nargs=-1, metavar="[KIND]...")
@click.option("--kernel", "kernels", multiple=True, default=("uml",), show_default=True,
              metavar="native|uml|SUITE|PATH|qemu:VERSION",
              help="As of `btrfs-model verify`; several at once.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), metavar="M",
              help="Begin nothing after so long; half of it for random scenarios, then the "
              "corpus.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), metavar="N",
              help=f"On N random scenarios of each kind.  [default: {_SEEDS}; with --minutes as "
              "many as there is time for]")  # fmt: skip
@click.option("--behaviour", metavar="B", default="",
              help="What the model does, as of `btrfs-model send --behaviour`, in place of what "
              "the kernel stands for.")  # fmt: skip
@click.option("--corpus", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="A folder of scenarios.  [default: data/verify of a clone, where it "
              "is]")  # fmt: skip
@json_option("Print one JSON object a cause.")
@output_option("Write it as a page.", "PAGE.html")
def radar(
    what: tuple[str, ...],
    kernels: tuple[str, ...],
    minutes: float | None,
    seeds: int | None,
    behaviour: str,
    corpus: Path | None,
    as_json: bool,
    output: Path | None,
) -> int:
    """Look for what a kernel does that the model does not, and for the commits behind it.

    Compares as `verify` does, on all kinds or those that are named. Differences are of one cause
    when one toggle takes them away, or when they look the same. The first of each cause is made
    short (minutes) and done on the other kernels that are here. Titles of commits between the
    judged releases follow, those with most words of what differs first: they are suggestions. Exit
    status 1 when something differs.
    """
    import pandas as pd

    from btrfs_model.base.samples import data_folder
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.experiments.radar.look import look, of_titles, rows_of
    from btrfs_model.experiments.report.radar import HEADINGS, cells, page
    from btrfs_model.experiments.verify.kinds import KINDS

    if behaviour:
        Behaviour.parse(behaviour)
    if wrong := sorted(set(what) - set(KINDS)):
        raise click.UsageError(f"{wrong[0]} is no kind: {', '.join(KINDS)}")
    if corpus is None and (usual := data_folder() / "verify").is_dir():
        corpus = usual
    elif corpus is not None:
        corpus.stat()
    if output is not None:
        with naming(output):
            output.parent.stat()
    with progress() as step:
        found = look(
            kernels, what or list(KINDS), seeds or (None if minutes else _SEEDS), minutes,
            behaviour, corpus.resolve() if corpus else None, step,
            lambda one: aside(f"{one.kernel}: {one.kind} {one.case}: {one.difference}; made short "
                              "now"),
        )  # fmt: skip
    if output is not None:
        from btrfs_model.base.version import __version__

        with naming(output), whole_file(output) as file:
            file.write(page(found, __version__).encode())
    if as_json:
        print_json_lines(list(rows_of(found)))
    else:
        rows = [cells(found, group) for group in found.groups]
        print_table(pd.DataFrame(rows, columns=list(HEADINGS)), as_json=False)
    aside(f"{sum(found.cases.values())} scenarios compared. {of_titles(found)}")
    for missed in found.missed:
        aside(f"not asked: {missed}")
    return 1 if found.groups else 0
