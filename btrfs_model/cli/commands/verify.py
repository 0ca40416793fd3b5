# SPDX-License-Identifier: GPL-2.0-only
"""Commands that ask kernels: ``verify``, ``ab``, ``calibrate``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from btrfs_model.base.whole_file import naming, whole_file
from btrfs_model.cli.common import (
    aside,
    note,
    print_json_lines,
    print_table,
    progress,
    write_json,
    write_table,
)
from btrfs_model.cli.flags import Command, json_option, output_option

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.experiments.verify.run import Outcome

_KINDS = ("send", "log", "replay", "fiemap", "data", "quotas", "reads", "full", "images")
_SMALL = ("sequences", "pairs")
_COUNTS, _TIME, _TRACE = "counts", "time", "trace"
_OF_IMAGES = ("send", "fiemap", "reads")
_SEEDS = 10
_MANY = 100_000
_FEW, _MOST = 10_000, 1_000_000


@click.command(
    cls=Command,
    examples=(
        "btrfs-model verify --kernel uml",
        "btrfs-model verify send log --kernel native --kernel uml --seeds 50",
        "btrfs-model verify data --kernel sid --behaviour v6.18.44 --toggles",
        "btrfs-model verify --image disk.img",
        "btrfs-model verify sequences --kernel native --jobs 2 --minutes 60",
        "btrfs-model verify time --kernel uml --kernel native --scale 0.1 -o times.json",
    ),
)
@click.argument("what", nargs=-1,
                type=click.Choice([*_KINDS, *_SMALL, _TRACE, _COUNTS, _TIME]))  # fmt: skip
@click.option("--kernel", "kernels", multiple=True, default=("uml",), show_default=True,
              metavar="native|uml|SUITE|PATH|qemu:VERSION",
              help="This machine's kernel (root), Debian's User-Mode Linux, that of another suite "
              "(`kernel get`), a linux.uml, or under emulation (slow); several at "
              "once.")  # fmt: skip
@click.option("--seeds", type=click.IntRange(min=1), metavar="N",
              help=f"Compare on N random scenarios of each kind.  [default: {_SEEDS}]")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Share the scenarios among N processes on each kernel.")  # fmt: skip
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), metavar="M",
              help="Begin nothing after so long; without --seeds go on until then. The longer, the "
              "larger filesystems may be: 10,000 files a minute, up to a million.")  # fmt: skip
@click.option("--behaviour", metavar="B", default="",
              help="What the model does, as of `btrfs-model send --behaviour`, in place of what "
              "the kernel stands for.")  # fmt: skip
@click.option(
    "--toggles",
    is_flag=True,
    help="Look which toggles take a difference away, each alone: a minute more for each.",
)
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, metavar="SEED",
              help="The first seed.")  # fmt: skip
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
              help="Compare on this image instead, which is not written to.")  # fmt: skip
@click.option("--corpus", type=click.Path(path_type=Path, file_okay=False),
              metavar="DIR", help="Compare on the scenarios of this folder first.  With --minutes "
              "and a kernel that counts: then on changed ones, which stay there when they reach "
              "something new.")  # fmt: skip
@click.option("--differences", type=click.Path(path_type=Path), default="verify-differences",
              show_default=True, metavar="DIR", help="Where a difference is written.")  # fmt: skip
@click.option("--runs", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Of time: how often each workload is timed.")  # fmt: skip
@click.option("--scale", type=click.FloatRange(min=0, min_open=True, max=1), default=1.0,
              show_default=True, metavar="SCALE",
              help="Of time: sizes up to this share of the largest.")  # fmt: skip
@json_option("Print one JSON object a comparison.")
@output_option(
    "Write the comparisons as Parquet; of time, what `btrfs-model replay --measured` takes."
)
def verify(
    what: tuple[str, ...],
    kernels: tuple[str, ...],
    seeds: int | None,
    jobs: int,
    minutes: float | None,
    behaviour: str,
    toggles: bool,
    first: int,
    images: tuple[Path, ...],
    corpus: Path | None,
    differences: Path,
    runs: int,
    scale: float,
    as_json: bool,
    output: Path | None,
) -> int:
    """Compare the model with live kernels, on random filesystems or on your image.

    WHAT is send (streams), log (what fsyncs log), replay (what a mount makes of logs), fiemap
    (extents and who refers to them), data (bytes on disk, mount options, rotted sectors) or quotas
    (what groups count). It is also reads (what a cold send reads), full (how much goes in) or
    images (kernels use what the model made). All of these by default. Kernels run at the same time.
    A difference is made short and written with what both say. Exit status 1 when there is one.

    WHAT is trace: what fsyncs, renames, links and unlinks decide, one tracepoint after the other,
    in a Linux 7.2 of `btrfs-model kernel build`.

    WHAT is sequences: all sequences of one and two operations on a small tree, then sampled ones of
    three, with fsync and sync of everything between and after. Or pairs: sends between all trees
    that differ by one and two operations. A seed is then a part of these, so that --seeds, --first
    and --minutes say which; without them it is all. A sequence may panic the kernel that carries it
    out, on `--kernel native` this machine: docs/findings.md says what is known. Of that the
    machine's own kernel does not get the mount, which is counted.

    WHAT is counts: the five workloads at a small scale, and how often each function runs, in a
    kernel of `btrfs-model kernel build`.

    WHAT is time: the five workloads at the sizes of their commit messages, on the side of each
    commit that a kernel stands for.
    """
    if _TIME in what:
        return _time(what, kernels, scale, runs, as_json, output)
    if _COUNTS in what:
        return _counts(what, kernels, as_json, output)
    from btrfs_model.behaviour import Behaviour
    from btrfs_model.experiments.verify.enumerated import cases_of, enumeration, rate
    from btrfs_model.experiments.verify.run import Task
    from btrfs_model.experiments.verify.run import verify as run
    from btrfs_model.volume.image import Image

    if behaviour:
        Behaviour.parse(behaviour)
    kinds = list(what or (_OF_IMAGES if images else _KINDS))
    if images and (wrong := sorted(set(what) - set(_OF_IMAGES))):
        raise click.UsageError(f"{wrong[0]} is not compared on an image")
    for image in images:
        Image.open(image).close()
    if corpus:
        corpus.stat()
        _refuse_other_kinds(corpus, kinds)
    if output is not None:
        with naming(output):
            output.parent.stat()
    small = next((kind for kind in kinds if kind in _SMALL), "")
    if small and (len(kinds) > 1 or images or corpus):
        raise click.UsageError(f"{small} is compared alone, on all there is")
    if small and not seeds:
        if first >= cases_of(small):
            raise click.UsageError(f"--first {first}: {small} has {cases_of(small)} parts")
        seeds = cases_of(small) - first
    number = seeds or (0 if corpus else _MANY if minutes else _SEEDS)
    until = time.time() + 60 * minutes if minutes else float("inf")
    most = min(_MOST, round(_FEW * max(minutes or 1, 1)))
    tasks = [Task(kernel, kinds, list(range(first + job, first + number, jobs)), most, until,
                  [str(image.resolve()) for image in images[job::jobs]],
                  str(corpus.resolve()) if corpus else "", behaviour, toggles)
             for kernel in dict.fromkeys(kernels) for job in range(jobs)]  # fmt: skip
    cases = len(images) or (None if minutes and not small else number)
    total = None if cases is None or corpus else len(tasks) // jobs * len(kinds) * cases
    found: list[Outcome] = []
    began, interrupted = time.monotonic(), False
    with progress(total) as step:

        def told(text: str) -> None:
            step(f"{text}; {rate(found, time.monotonic() - began)}" if small else text)

        try:
            for outcome in run(tasks, told, _seen):
                found.append(outcome)
                if outcome.difference:
                    _write(differences, outcome)
        except KeyboardInterrupt:
            interrupted = True
    reached = [outcome.reach for outcome in found if outcome.reach]
    found = [outcome for outcome in found if not outcome.reach]
    table = _rows(found)
    if output is not None:
        write_table(table, output)
    print_table(table if as_json else enumeration(found) if small else _summary(table),
                as_json=as_json)  # fmt: skip
    if reached:
        _print_reach(reached, as_json=as_json)
    different = [outcome for outcome in found if outcome.difference]
    for outcome in different:
        place = _place(differences, outcome)
        goes = ""
        if toggles and outcome.scenario:
            goes = (f"goes away with {' or '.join(outcome.toggles) or 'none'}, of the "
                    f"{outcome.tried} newest toggles; ")  # fmt: skip
        click.echo(f"{outcome.kernel}: {outcome.kind} {outcome.case}: {outcome.difference}; "
                   f"{goes}see {place}", err=True)  # fmt: skip
    if interrupted:
        aside("interrupted: this is what was compared until then")
        return 130
    return 1 if different else 0


def _seen(outcome: Outcome) -> None:
    aside(f"{outcome.kernel}: {outcome.kind} {outcome.case}: {outcome.difference}; made short now")


def _counts(what: Sequence[str], kernels: Sequence[str], as_json: bool, output: Path | None) -> int:
    """Print the functions whose counts differ, and how many do not."""
    import pandas as pd

    from btrfs_model.experiments.verify.counts import count

    if len(what) > 1 or len(kernels) > 1:
        raise click.UsageError("counts are told of one kernel, and alone")
    with progress(1) as step:
        step("counting the workloads")
        rows = count(Path(kernels[0]))
    table = pd.DataFrame(
        [(*astuple(row), row.differs) for row in rows],
        columns=["workload", "function", "kernel", "model", "why", "differs"],
    )
    if output is not None:
        write_table(table, output)
    print_table(table, as_json=as_json)
    different = sum(row.differs for row in rows)
    compared = sum(not row.why for row in rows)
    aside(f"{compared} counts compared, {different} differ")
    return 1 if different else 0


def _time(
    what: Sequence[str], kernels: Sequence[str], scale: float, runs: int, as_json: bool,
    output: Path | None,
) -> int:  # fmt: skip
    """Time the workloads, and write what a replay takes."""
    import pandas as pd

    from btrfs_model.experiments.verify.times import MEASURES, measure

    if len(what) > 1:
        raise click.UsageError("time is told alone")
    if output is not None:
        with naming(output):
            output.parent.stat()
    with progress() as step:
        found = measure(list(dict.fromkeys(kernels)), list(MEASURES), scale, runs, step)
    write_json(output, found)
    told = ("workload", "side", "quantity", "kind", "kernel", "unit", "value", "min", "max", "runs")
    rows = [
        (*(row[name] for name in told[:2]),
         ", ".join(f"{name} {value}" for name, value in row.items() if name not in told),
         *(row[name] for name in told[2:]))
        for row in found["rows"]
    ]  # fmt: skip
    columns = [*told[:2], "case", *told[2:]]
    print_table(pd.DataFrame(rows, columns=columns), as_json=as_json)
    return 0


def _refuse_other_kinds(folder: Path, kinds: Sequence[str]) -> None:
    """Refuse a corpus of which nothing would be compared, and say what of one is not."""
    from btrfs_model.base.errors import BtrfsModelError
    from btrfs_model.experiments.verify.random.steer import corpus

    there = {kind for kind, _ in corpus(folder)}
    if there.isdisjoint(kinds):
        raise BtrfsModelError(
            f"{folder}: no scenario of {' or '.join(kinds)}; the name of one begins with its kind, "
            "as log-1.json"
        )
    if others := sorted(there - {*_KINDS}):
        note(f"{folder}: {', '.join(others)}: scenarios of no kind, which are not compared")


def _place(folder: Path, outcome: Outcome) -> Path:
    parts = (Path(outcome.kernel).name, outcome.kind, Path(outcome.case).name)
    return folder / "-".join(parts)


def _write(folder: Path, outcome: Outcome) -> None:
    place = _place(folder, outcome)
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.txt").write_text(f"{outcome.by_kernel}\n")
    (place / "model.txt").write_text(f"{outcome.by_model}\n")
    if outcome.scenario:
        doc = {"name": f"{outcome.kind} {outcome.case}", "doc": outcome.difference,
               "hex_values": True, "ops": outcome.scenario}  # fmt: skip
        (place / f"{outcome.kind}-scenario.json").write_text(json.dumps(doc, indent=1) + "\n")


def _rows(found: Sequence[Outcome]) -> pd.DataFrame:
    """Return a row for each unit that was compared in a case."""
    import pandas as pd

    rows = [
        (one.kernel, one.release, one.kind, one.case, one.files, unit, amount, one.seconds,
         one.difference, " or ".join(one.toggles))
        for one in found
        for unit, amount in (one.compared or {"": 0}).items()
    ]  # fmt: skip
    columns = ["kernel", "release", "kind", "case", "files", "unit", "compared", "seconds",
               "difference", "toggles"]  # fmt: skip
    return pd.DataFrame(rows, columns=columns)


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each kind on each kernel."""
    import pandas as pd

    rows = []
    for (kernel, kind), part in table.groupby(["release", "kind"], sort=False):
        cases = part.drop_duplicates("case")
        units = part.groupby("unit", sort=False)["compared"].sum()
        rows.append((
            kernel, kind, len(cases), _told(units.items()), int(cases["files"].max()),
            round(cases["seconds"].sum()), int((cases["difference"] != "").sum()),
        ))  # fmt: skip
    columns = ["kernel", "kind", "cases", "compared", "most files", "seconds", "differences"]
    return pd.DataFrame(rows, columns=columns)


def _print_reach(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print how many lines and branches of the kernel ran: by function as JSON, else by file.

    What cannot be reached does not count among the lines; its reasons are told.
    """
    import pandas as pd

    table = pd.DataFrame(rows)
    reasons = [(row["file"], reason, lines)
               for row in rows for reason, lines in row["unreachable"].items()]  # fmt: skip
    table["unreachable"] = [sum(row["unreachable"].values()) for row in rows]
    if not as_json:
        columns = ["lines", "ran", "unreachable", "branches", "taken"]
        table = table.groupby("file", as_index=False)[columns].sum()
    reachable = (table["lines"] - table["unreachable"]).clip(lower=1)
    table["lines %"] = (100 * table["ran"] / reachable).round(1)
    table["branches %"] = (100 * table["taken"] / table["branches"].clip(lower=1)).round(1)
    print_table(table, as_json=as_json)
    if reasons and not as_json:
        why = pd.DataFrame(reasons, columns=["file", "unreachable because", "lines"])
        print_table(why.groupby(["file", "unreachable because"], as_index=False).sum(),
                    as_json=False)  # fmt: skip
    for row in rows:
        if row["wrong"]:
            click.echo(f"{row['file']}: {row['function']}: listed as unreachable, and ran: lines "
                       f"{', '.join(map(str, row['wrong']))}", err=True)  # fmt: skip


def _told(units: Iterable[tuple[object, int]]) -> str:
    return ", ".join(f"{amount:,} {unit}" for unit, amount in units if amount)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model ab linux 3e49363be633",
        "btrfs-model ab linux-source-6.1 posted.mbox --workload send-utimes --runs 9",
        "btrfs-model ab linux-source-6.1 posted.patch --script measure.sh -o page.html",
    ),
)
@click.argument("tree", type=click.Path(path_type=Path, file_okay=False))
@click.argument("change", metavar="COMMIT|PATCH")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    metavar="NAME",
    help="Of `btrfs-model replay`; that of the commit's message, or all, without it.",
)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Run this in both, and in the model: a script, or a mail with one. The devices that it "
    "names are there and blank; so is $DEV, to be mounted on $MNT.",
)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="How often each kernel does the same.",
)
@click.option("--scale", type=click.FloatRange(min=0, min_open=True, max=1), metavar="SCALE",
              help="Size of workloads, as of `btrfs-model replay`; without it one that takes "
              "seconds.")  # fmt: skip
@json_option("Print one JSON object a row.")
@output_option("Write it as a page.", "PAGE.html")
def ab(
    tree: Path,
    change: str,
    workloads: tuple[str, ...],
    script: Path | None,
    runs: int,
    scale: float | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Compare the kernels before and after a commit of a git tree, or a patch for any tree.

    Builds both as User-Mode Linux, lets both do the same in turns, and shows what the message
    reports, the model predicts and the kernels take, with 90 % intervals. A patch is a file as
    `git show` or `git format-patch` writes it, or mails; a tree that has it already is the one
    after it. Numbers that a script prints are compared. Kernels are kept in
    ~/.cache/btrfs-model/kernels.
    """
    import pandas as pd

    from btrfs_model.experiments.ab.compare import compare
    from btrfs_model.experiments.ab.rows import HEADINGS
    from btrfs_model.experiments.report.ab import known, page

    for path in (tree, *([script] if script else [])):
        path.stat()
    if output is not None:
        with naming(output):
            output.parent.stat()
    with progress() as step:
        found = compare(tree, change, workloads, script, runs, scale, step)
    if output is not None:
        from btrfs_model.base.version import __version__

        with whole_file(output) as file:
            file.write(page(found, __version__).encode())
    rows = [(row.workload, *row.cells) for row in (*found.rows, *found.counts)]
    if as_json:
        print_json_lines([asdict(row) for row in (*found.rows, *found.counts)])
        return
    print_table(pd.DataFrame(rows, columns=["workload", "what", *HEADINGS[1:]]), as_json=False)
    aside(f"{found.title}. {known(found)}")
    for text in found.notes:
        aside(text)


@click.command(
    cls=Command,
    examples=(
        "btrfs-model calibrate -o machine.toml",
        "btrfs-model calibrate --kernel uml -o uml.toml",
        "btrfs-model replay send-utimes --machine ./machine.toml",
    ),
)
@click.option(
    "--kernel",
    default="native",
    show_default=True,
    metavar="native|uml|PATH",
    help="This machine's kernel (root), Debian's User-Mode Linux, or a linux.uml.",
)
@click.option("--seconds", type=click.FloatRange(min=0), default=60, show_default=True,
              help="How long is timed; two passes at least.")  # fmt: skip
@output_option("Where the machine goes.", "FILE.toml", required=True)
def calibrate(kernel: str, seconds: float, output: Path) -> None:
    """Measure what each kind of work takes on a kernel.

    Small filesystems, made for one kind of work each, are counted by the model and timed on the
    kernel; twelve unit costs explain the times. Nothing else should run meanwhile.
    """
    from btrfs_model.experiments.calibration.api import calibrate as measure
    from btrfs_model.experiments.calibration.machine_file import BUSY

    with naming(output):
        # before minutes of measuring
        output.parent.stat()
    with progress() as step:
        text, measured = measure(kernel, seconds, step)
    if measured.spread > BUSY:
        aside(
            f"the machine is busy: equal runs spread by {measured.spread:.0%}, so intervals are "
            "wide; calibrate again when it is quiet"
        )
    with naming(output), whole_file(output) as file:
        file.write(text.encode())
