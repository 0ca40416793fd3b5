# SPDX-License-Identifier: GPL-2.0-only
"""Commands about experiments: ``replay``, ``atlas``, ``patches``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.base.whole_file import naming, whole_file
from btrfs_model.cli.common import STDOUT, aside, echo, print_table, progress
from btrfs_model.cli.flags import (
    Command,
    device_option,
    json_option,
    limits_option,
    machine_option,
    offers,
    output_option,
    parameters_option,
    tell_unjudged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    from rich.console import Console

    from btrfs_model.experiments.atlas.rows import Row
    from btrfs_model.experiments.atlas.runs import Run
    from btrfs_model.experiments.atlas.scores import Judged
    from btrfs_model.experiments.replay import Replay
    from btrfs_model.experiments.workloads import Figure

_WIDTH = 110
"""Characters of a line where there is no terminal."""


def _workloads() -> tuple[str, ...]:
    from btrfs_model.experiments.replays import all_names

    return all_names()


def _scale(_: click.Context, __: click.Parameter, value: str) -> str | float:
    if value in ("full", "quick"):
        return value
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter("'full', 'quick' or a fraction of full such as 0.025") from None


@click.command(
    cls=Command,
    examples=(
        "btrfs-model replay",
        "btrfs-model replay send-truncate --scale quick --out /tmp/quick",
        "btrfs-model replay send-truncate --kernel-after v6.12",
        "btrfs-model replay send-readahead --device deskstar-7k500 --set queue_depth=1",
        "btrfs-model replay send-readahead --limits always_leaves=1M --nodesize 4096",
    ),
)
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", shell_complete=offers(_workloads))
@click.option(
    "--scale",
    default="full",
    show_default=True,
    callback=_scale,
    metavar="SCALE",
    help="Size: full (as in the commit message), quick, or a fraction of full.",
)
@click.option(
    "--kernel-before",
    metavar="B",
    callback=tell_unjudged,
    help="Behaviour to compare instead of the one just before the commit.",
)
@click.option(
    "--kernel-after",
    metavar="B",
    callback=tell_unjudged,
    help="Behaviour to compare instead of the one with the commit.",
)
@device_option(
    help="Model times on this device: a name of `btrfs-model reads --devices`, or a file "
    "NAME.toml.",
)
@parameters_option
@limits_option
@click.option(
    "--nodesize",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Build the filesystem with tree blocks of that size, 4096 to 65536.",
)
@machine_option
@click.option("--measured", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Times of this machine's kernels, which `btrfs-model verify time` wrote, "
              "in place of those that come with the package.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Workloads replayed at a time; as many as there are processors and free memory "
              "for (4 GB each) without it.")  # fmt: skip
@output_option("Folder for the results; made when it is missing.", "DIR", name="out",
               default="out", show_default=True)  # fmt: skip
@json_option("Print all rows of results.csv instead, one JSON object a line.")
def replay(
    workloads: tuple[str, ...],
    scale: str | float,
    kernel_before: str | None,
    kernel_after: str | None,
    device: str | None,
    parameters: dict[str, float | str],
    limits: dict[str, int],
    nodesize: int | None,
    machine: str | None,
    measured: Path | None,
    jobs: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Replay workloads of commit messages on both sides of their commit.

    Shows the main figures, and in the end whether the speedups come out. Writes all of them:
    report.html, results.csv, results.parquet, speedups.csv, messages.csv, charts for each workload,
    and provenance.json. Without WORKLOAD it replays all there are, or all that have the knobs that
    are turned: --device, --set, --limits, --nodesize. One of your own is named by its entry point.
    """
    from btrfs_model.experiments.replays import all_names, check, default_jobs, run_all
    from btrfs_model.experiments.report import write
    from btrfs_model.experiments.times import read_measured
    from btrfs_model.experiments.workloads import load
    from btrfs_model.experiments.workloads.knobs import Knobs

    knobs = Knobs(device, parameters, limits, nodesize)
    names = tuple(dict.fromkeys(workloads)) or all_names(knobs.turned)
    for name in names:
        load(name).sides(kernel_before, kernel_after)
    times = None if measured is None else read_measured(measured)
    check(names, scale, knobs, machine, out)
    with progress() as step:
        replays = run_all(
            names, jobs or default_jobs(), step,
            scale=scale, behaviour_before=kernel_before, behaviour_after=kernel_after, knobs=knobs,
            machine=machine, measured=times,
        )  # fmt: skip
        step("writing the report")
        files = write(replays, out)
    if as_json:
        from btrfs_model.experiments.results import frame

        print_table(frame(replays), as_json=True)
        return
    with naming(STDOUT):
        for one in replays:
            _print_replay(one)
        echo(f"Written to {out}: {', '.join(file.name for file in files)}\n")
        _print_answer(replays)


def _print_replay(one: Replay) -> None:
    """Print the main figures of a replay."""
    from rich.table import Table

    from btrfs_model.experiments.numbers import number, percent
    from btrfs_model.experiments.results import label

    console = _console()
    commit = one.workload.toggles[0]
    settings = ", ".join(f"{key} {value}" for key, value in one.settings.items())
    console.print(f"\n[bold]{one.workload.name}[/]: {commit.subject} (v{commit.release})")
    console.print(f"{settings}; filesystem {one.origin}")
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("figure", overflow="fold")
    table.add_column("side", no_wrap=True)
    for name in ("reported", "modelled", "measured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for figures in _shown(one):
        text = label(figures[0])
        unit = figures[0].unit
        if unit not in (text.partition(",")[0].split()[-1], text.partition(":")[0]):
            text = f"{text} ({unit})"
        for figure in figures:
            table.add_row(
                text, figure.side, number(figure.reported), number(figure.modelled),
                number(figure.measured), percent(figure.error),
            )  # fmt: skip
            text = ""
    console.print(table)
    for side in one.sides:
        console.print(f"{side.name}: kernel {side.behaviour}", style="dim")
    for kind, where in one.outcome.measured_on.items():
        console.print(f"measured, {kind}: {where}", style="dim")
    for text in one.notes:
        console.print(text, style="dim")
    console.print()


def _console() -> Console:
    """Return the terminal, or what stands for it."""
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(width=_WIDTH)


def _print_answer(replays: list[Replay]) -> None:
    """Print whether the speedups come out: some lines for each commit."""
    from rich.padding import Padding
    from rich.text import Text

    from btrfs_model.experiments.report.verdicts import HEADINGS, commit_row

    console = _console()
    console.print("[bold]Do the speedups come out?[/]")
    for row in map(commit_row, replays):
        message = row.message
        about = Text(", ".join(filter(None, (row.workload, row.case))), style="bold")
        if message.commit:
            about.append(f"\n{message.title} ({message.release})\n", style="not bold")
            about.append(message.url, style=f"not bold link {message.url}")
        if message.series:
            about.append(f"\nseries of {message.series.number}, its last commit", style="not bold")
        if row.alone:
            about.append(f"\n{row.alone}", style="not bold")
        *figures, work, verdict = row.cells
        said = zip(HEADINGS[1:4], figures, strict=True)
        line = ", ".join(f"{name} {figure}" for name, figure in said)
        console.print(about)
        console.print(Padding(Text(f"{line}\n{work}\n{verdict}"), (0, 0, 1, 2), expand=False))
    console.print("Why, and all other times: report.html", style="dim")


def _shown(one: Replay) -> list[list[Figure]]:
    """Return the main figures: the sides beside each other, each case that was replayed in turn."""
    names = {side.name for side in one.sides}
    quantities = [figure.quantity for figure in one.outcome.figures]
    headline = one.workload.headline or tuple(dict.fromkeys(quantities))
    rows: dict[tuple[object, ...], list[Figure]] = {}
    for figure in one.outcome.figures:
        if figure.side in names and figure.quantity in headline:
            rows.setdefault(figure.key, []).append(figure)
    cases = list(dict.fromkeys(key[1:] for key in rows))
    return sorted(
        rows.values(),
        key=lambda row: (cases.index(row[0].key[1:]), headline.index(row[0].quantity)),
    )


def _rows() -> tuple[str, ...]:
    from btrfs_model.experiments.atlas.rows import AREAS, all_rows

    return (*AREAS, *(row.name for row in all_rows()))


@click.command(
    cls=Command,
    examples=(
        "btrfs-model atlas --scale quick",
        "btrfs-model atlas send log --out /tmp/atlas",
        "btrfs-model atlas adf0241868bd",
        "btrfs-model atlas send-skip-own-ref --predict-only predicted.toml",
        "btrfs-model atlas send-skip-own-ref --scale quick --history",
        "btrfs-model atlas log-delayed-items --sizes",
        "btrfs-model atlas --image disk.img",
    ),
)
@click.argument("rows", nargs=-1, metavar="[ROW|AREA]...", shell_complete=offers(_rows))
@click.option("--scale", default="full", show_default=True, type=click.Choice(["full", "quick"]),
              help="Size: full (as in the commit messages), or quick.")  # fmt: skip
@click.option("--predict-only", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Only add what is predicted to FILE, with date, version and a hash of the "
              "model; refused for a row whose figures are entered.")  # fmt: skip
@click.option("--history", is_flag=True,
              help="Run the scripts of rows on all releases instead, from 4.16 to 7.3: which made "
              "them faster, and by which commits. history.csv in DIR has all of it.")  # fmt: skip
@click.option("--sizes", is_flag=True,
              help="Run rows with a ratio at four smaller sizes, too, each for two minutes at "
              "most: what the commit buys over the size, and where it begins to pay. sizes.csv in "
              "DIR has all of it.")  # fmt: skip
@click.option("--kernel", type=click.Path(path_type=Path, dir_okay=False),
              metavar="PATH", help="Count what scripts of rows call in this linux of `btrfs-model "
              "kernel build` and in the model instead, on the side of the kernel.")  # fmt: skip
@click.option("--image", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              metavar="IMAGE", help="Rank the commits by what they buy for this image instead: its "
              "sends, FIEMAPs and fsyncs on the newest kernel without each.")  # fmt: skip
@machine_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Rows run at a time; as many as there are processors and free memory for "
              "(4 GB each) without it.")  # fmt: skip
@output_option("Folder for atlas.html, atlas.csv and atlas.parquet; made when it is missing.",
               "DIR", name="out", default="out/atlas", show_default=True)  # fmt: skip
@json_option("Print all rows of atlas.csv instead, one JSON object a line.")
def atlas(
    rows: tuple[str, ...], scale: str, predict_only: Path | None, history: bool, sizes: bool,
    kernel: Path | None, image: Path | None, machine: str | None, jobs: int | None, out: Path,
    as_json: bool,
) -> int:  # fmt: skip
    """Show what commits buy: by their messages, and by the model on both sides of each.

    A row is a commit of data/atlas: named by its file, its id or a toggle, or all of an area (send,
    fiemap, log, names, files, trees). Its script runs right before the commit and right after it.
    What was predicted before the figures of a message were looked up counts; rows whose figures
    were known are told apart. In the end scores by kind, area and year.
    """
    import pandas as pd

    from btrfs_model.experiments.atlas.predictions import add
    from btrfs_model.experiments.atlas.rows import chosen
    from btrfs_model.experiments.atlas.runs import run_all
    from btrfs_model.experiments.atlas.scores import judge, table
    from btrfs_model.experiments.replays import default_jobs
    from btrfs_model.experiments.report.atlas import HEADINGS, flat, write

    if image is not None:
        _alone(
            "image", "rows", "scale", "predict_only", "history", "sizes", "kernel", "jobs", "out"
        )
        _image(image, machine, as_json=as_json)
        return 0
    wanted = chosen(rows)
    if kernel is not None:
        _alone("kernel", "predict_only", "history", "sizes", "machine", "jobs", "out")
        return _counted(wanted, kernel, scale, as_json=as_json)
    if history:
        _alone("history", "predict_only", "sizes")
        _history(wanted, scale, machine, out, as_json=as_json)
        return 0
    if predict_only is not None:
        _alone("predict_only", "sizes")
        for row in wanted:
            row.refuse_prediction()
        scale = "full"
    at_a_time = jobs or default_jobs()
    with progress() as step:
        runs = run_all(wanted, scale, machine, at_a_time, step)
        found = _sizes(runs, machine, at_a_time, step) if sizes else None
    if predict_only is not None:
        add(predict_only, {run.row.name: run.predicted for run in runs})
        aside(f"{predict_only}: {', '.join(run.row.name for run in runs)}")
        return 0
    judged = judge(runs)
    files = write(runs, out, found)
    if as_json:
        print_table(table(judged) if found is None else found, as_json=True)
        return 0
    print_table(pd.DataFrame([flat(one) for one in judged], columns=list(HEADINGS)))
    _print_scores(judged)
    if found is not None:
        _print_sizes(found)
    aside(f"Written to {out}: {', '.join(file.name for file in files)}")
    return 0


def _alone(option: str, *others: str) -> None:
    """Refuse options, and rows, that do not go with one."""
    asked = click.get_current_context().get_parameter_source
    given = click.get_current_context().params
    for name in others:
        if asked(name) is click.core.ParameterSource.COMMANDLINE and (
            name != "rows" or given[name]
        ):
            told = "a row" if name == "rows" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--{option.replace('_', '-')} does not go with {told}")


def _counted(wanted: Sequence[Row], kernel: Path, scale: str, *, as_json: bool) -> int:
    """Print how often functions are called in a kernel and in the model."""
    from btrfs_model.experiments.atlas.counted import counted

    with progress(len(wanted)) as step:
        found = counted(wanted, kernel, scale, step)
    print_table(found, as_json=as_json)
    compared = found[found.why == ""]
    different = compared[compared.kernel != compared.model]
    aside(f"{len(compared):,} compared, {len(different):,} differ")
    return 1 if len(different) else 0


def _sizes(
    runs: Sequence[Run], machine: str | None, jobs: int, step: Callable[[str], None]
) -> pd.DataFrame:
    """Run rows at smaller sizes, and say what is left out."""
    from btrfs_model.experiments.atlas.sizes import sizes

    failed = 0

    def report(done: int, total: int, not_told: int) -> None:
        nonlocal failed
        failed = not_told
        step(f"smaller sizes: {done} of {total}")

    found = sizes(runs, machine, jobs, report)
    if failed:
        aside(f"{failed} sizes are left out: they failed, or took too long")
    return found


def _print_sizes(found: pd.DataFrame) -> None:
    """Print the ratios of each row over its sizes, and where they pay."""
    import pandas as pd

    from btrfs_model.experiments.report.size_chart import cells

    for row, of_one in found.groupby("row", sort=False):
        headings, rows = cells(of_one)
        echo("")
        print_table(pd.DataFrame(rows, columns=headings), title=str(row))


def _image(image: Path, machine: str | None, *, as_json: bool) -> None:
    """Print which commits matter for an image."""
    from btrfs_model.behaviour import PRESETS, Behaviour
    from btrfs_model.experiments.atlas.image import ranking, shown

    with progress() as step:
        found, notes = ranking(image, machine, step)
    print_table(found if as_json else shown(found), as_json=as_json)
    for note in notes:
        aside(note)
    aside(f"{PRESETS[-1]} without each of its {len(Behaviour.parse(PRESETS[-1]).patches)} toggles: "
          f"{found.toggle.nunique()} matter")  # fmt: skip


def _history(
    wanted: Sequence[Row], scale: str, machine: str | None, out: Path, *, as_json: bool
) -> None:  # fmt: skip
    """Print what rows take on all releases, and write it."""
    import pandas as pd

    from btrfs_model.experiments.atlas.history import changes, history
    from btrfs_model.experiments.results import to_csv

    with progress() as step:
        found = pd.concat([history(row, scale, machine, step) for row in wanted])
    out.mkdir(parents=True, exist_ok=True)
    with whole_file(out / "history.csv") as file:
        file.write(to_csv(found))
    print_table(found if as_json else changes(found), as_json=as_json)
    aside(f"Written to {out / 'history.csv'}: all releases")


def _print_scores(judged: list[Judged]) -> None:
    """Print how often the model was right, by what was predicted blindly and what was known."""
    import pandas as pd

    from btrfs_model.experiments.report.atlas import SCORES, TITLES, score_rows

    for title, known in TITLES.items():
        found = score_rows(judged, known=known)
        if found:
            echo("")
            print_table(pd.DataFrame(found, columns=list(SCORES)), title=title)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model patches",
        "btrfs-model patches send-utimes-cache",
        "btrfs-model patches 3e49363be633",
        "btrfs-model patches --json | jq -r 'select(.release == \"6.3\") | .slug'",
    ),
)
@click.argument("slug", required=False)
@json_option("One JSON object a line.")
def patches(slug: str | None, as_json: bool) -> None:
    """Show the kernel commits that the model can be taken back before, or all about one of them.

    A behaviour is a preset (v4.16, v6.12, v6.1.176, ...) with toggles added or taken away:
    'v6.12 - send-utimes-cache'. The id of a commit, 8 digits or more, stands for the main line
    right after it, with ^ right before it; rows are in that order. Of one toggle, by SLUG or by the
    id of its commit, it is shown what the commit changes, which lines of this program ask for it,
    which workloads show it and which tests name it; of a preset, how far it was compared with
    kernels, and the toggles that came with it.

    Column "judged": the sides of a commit that kernels were compared with. Between two kernels
    that were compared, a preset is as good as the list of toggles.
    """
    from btrfs_model.behaviour import JUDGED, PRESETS, standing, table

    if slug in PRESETS:
        _show_preset(slug, as_json)
        return
    if slug is not None:
        from btrfs_model.experiments.evidence import toggles_of

        for number, one in enumerate(toggles_of(slug)):
            if number and not as_json:
                echo("")
            _show_patch(one, as_json)
        return
    columns = ("slug", "release", "commit", "what", "asked", "judged")
    print_table(table(), as_json=as_json, narrow=columns)
    if not as_json:
        aside(f"Presets: {', '.join(PRESETS)}")
        aside(f"Compared with kernels: {', '.join(JUDGED)}; {standing(PRESETS[0])}")


def _show_preset(name: str, as_json: bool) -> None:
    """Show how far a preset was compared with kernels, and what it has that older ones lack."""
    from btrfs_model.behaviour import PRESETS, Behaviour, standing
    from btrfs_model.patches import Patch

    at = PRESETS.index(name)
    before = Behaviour.parse(PRESETS[at - 1]).patches if at else frozenset[Patch]()
    new = [str(one) for one in Behaviour.parse(name) if one not in before]
    known = {"preset": name, "standing": standing(name), "new": new}
    if as_json:
        echo(json.dumps(known))
        return
    echo(f"{'preset':<10} {name}")
    echo(f"{'standing':<10} {known['standing']}")
    for row, one in enumerate(new or ["-"]):
        echo(f"{'' if row else 'new':<10} {one}")


def _show_patch(slug: str, as_json: bool) -> None:
    from btrfs_model.experiments.evidence import evidence

    known = evidence(slug)
    if as_json:
        echo(json.dumps(known))
        return
    for name, value in known.items():
        first, *rest = value if isinstance(value, list) and value else [value or "-"]
        echo(f"{name:<10} {first}")
        for one in rest:
            echo(f"{'':<10} {one}")
