# SPDX-License-Identifier: GPL-2.0-only
"""Commands about sweeps: ``sweep``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from btrfs_model.base.whole_file import whole_file
from btrfs_model.cli import common
from btrfs_model.cli.common import echo, print_json_lines, print_table
from btrfs_model.cli.flags import SIZE, Command, json_option, output_option

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from btrfs_model.experiments.sweep.driver import Report
    from btrfs_model.experiments.sweep.plan import Plan
    from btrfs_model.experiments.sweep.spec import Spec
    from btrfs_model.experiments.sweep.store import Store

_SHOWN_FAILED: Final = 20


@click.command(
    cls=Command,
    examples=(
        "btrfs-model sweep utimes.toml --dry-run",
        "btrfs-model sweep utimes.toml --store utimes.sweep --out utimes.parquet",
        "btrfs-model sweep status utimes.toml --store utimes.sweep",
        "btrfs-model sweep utimes.toml --sobol",
        "btrfs-model sweep utimes.toml --scheduler tcp://head:8786 --store u.sweep",
    ),
)
@click.argument("words", nargs=-1, required=True, metavar="[status] SPEC.toml")
@click.option("--store", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder that remembers the cells.  [default: SPEC.sweep here]")  # fmt: skip
@output_option("Parquet, or CSV for a name in .csv.  [default: SPEC.parquet here]", name="out")
@click.option(
    "--dry-run", is_flag=True, help="Say how many cells there are, and how long it takes."
)
@click.option("--scheduler", metavar="S",
              help="A Dask cluster: tcp://HOST:PORT, or local for one here.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Cells measured at a time.  [default: one for each processor]")  # fmt: skip
@click.option("--morris", "method", flag_value="morris", default=None,
              help="Sample the knobs, and say which matter (Morris).")  # fmt: skip
@click.option("--sobol", "method", flag_value="sobol",
              help="Sample the knobs, and say how much each decides (Sobol).")  # fmt: skip
@click.option("--small", is_flag=True, help="The cells of the table [small] of SPEC.")
@click.option("--retries", type=click.IntRange(min=0), default=2, show_default=True, metavar="N",
              help="How often a cell is tried again whose process died.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=3600.0,
              show_default=True, metavar="S",
              help="Seconds after which a cell hangs, and its process is ended.")  # fmt: skip
@click.option("--memory", type=SIZE, metavar="BYTES",
              help="What each process may have (K, M, G, T).")  # fmt: skip
@click.option("--refresh", is_flag=True, help="Measure again what another model measured.")
@json_option("Of an analysis and of status: one JSON object a line.")
@click.option("--incomplete", is_flag=True, help="Go on without the cells that fail.")
def sweep(
    words: tuple[str, ...],
    store: Path | None,
    out: Path | None,
    dry_run: bool,
    scheduler: str | None,
    jobs: int | None,
    method: str | None,
    small: bool,
    retries: int,
    timeout: float,
    memory: int | None,
    refresh: bool,
    as_json: bool,
    incomplete: bool,
) -> int:
    """Measure the same in very many cells: of a workload, script, scenario or function.

    SPEC.toml says what and over which knobs (docs/sweeps.md). What the store has is not measured
    again, so a sweep that was ended goes on where it was. A cell that fails is noted, and the
    others go on; the status is then 1. `sweep status SPEC.toml` says which cells are done, missing,
    failed, or stale: measured by another model. A SPEC with `function` is code: the module beside
    it that it names is run.
    """
    from btrfs_model.experiments.sweep.api import Settings, carry_out, check_quantities
    from btrfs_model.experiments.sweep.api import dry_run as estimate
    from btrfs_model.experiments.sweep.sensitivity import METHODS
    from btrfs_model.experiments.sweep.spec import load
    from btrfs_model.experiments.sweep.store import Store

    is_status = len(words) == 2 and words[0] == "status"
    if not is_status and len(words) != 1:
        raise click.UsageError(f"one SPEC.toml is wanted, not {' '.join(words)!r}")
    spec = load(words[-1], small=small)
    stem = Path(words[-1]).stem
    folder = store or Path(f"{stem}.sweep")
    planned = spec.plan(sampler=METHODS[method] if method else None)
    check_quantities(
        spec.target, [*(spec.quantities or ()), *(one.quantity for one in spec.conclusions)]
    )
    if is_status:
        return _status(planned, Store(folder), as_json=as_json)
    settings = Settings(
        folder, scheduler, jobs, None if method else spec.quantities, retries, timeout, memory,
        refresh, incomplete,
    )  # fmt: skip
    if dry_run:
        found = estimate(spec.target, planned, settings)
        echo(
            f"{found['cells']:,} cells, {found['done']:,} of them done; {found['missing']:,} take "
            f"about {_duration(found['seconds'])}, {found['jobs']} at a time "
            f"({found['seconds_each'] * 1000:,.1f} ms each)"
        )
        return 0
    target = out or Path(f"{stem}.parquet")
    started = time.monotonic()
    with _progress() as settings.report:
        table, cells = carry_out(spec.target, planned, settings)
    return _write(spec, planned, table, cells, method, target, started, as_json=as_json)


def _write(
    spec: Spec, planned: Plan, table: pd.DataFrame, cells: NDArray[np.int64], method: str | None,
    out: Path, started: float, *, as_json: bool,
) -> int:  # fmt: skip
    """Write the table, and what an analysis finds; the status is 1 where cells are missing."""
    from btrfs_model.experiments.sweep.files import packed

    files = {out: packed(table, spec, planned, out)}
    measured = len(set(cells.tolist()))
    if method is not None:
        from btrfs_model.base.charts import to_png
        from btrfs_model.experiments.sweep.charts import tornado
        from btrfs_model.experiments.sweep.sensitivity import analyse

        found = analyse(
            planned, table, cells, method, spec.quantities or (), spec.conclusions
        )  # fmt: skip
        named = out.with_name(f"{out.stem}-{method}{out.suffix}")
        files[named] = packed(found, spec, planned, named)
        files[out.with_name(f"{out.stem}-{method}.png")] = to_png(tornado(found, spec.title))
        print_table(found.round(4), as_json=as_json)
    for file, content in files.items():
        with whole_file(file) as sink:
            sink.write(content)
    tell = common.aside if as_json else echo
    tell(
        f"{measured:,} of {len(planned):,} cells, {len(table):,} rows, "
        f"{_duration(time.monotonic() - started)}: {', '.join(map(str, files))}"
    )
    return int(measured < len(planned))


def _status(planned: Plan, store: Store, *, as_json: bool) -> int:
    """Print what a store has of a sweep; the status is 1 where cells failed."""
    from btrfs_model.experiments.sweep.api import status

    counts, failed = status(planned, store)
    if as_json:
        print_json_lines([counts, *failed])
        return int(bool(failed))
    echo(f"{store.path}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))
    for one in failed[:_SHOWN_FAILED]:
        about = ", ".join(f"{name}={value}" for name, value in one["params"].items())
        echo(f"failed: {about}: {one['error']}")
    if len(failed) > _SHOWN_FAILED:
        echo(f"... and {len(failed) - _SHOWN_FAILED:,} more")
    return int(bool(failed))


def _duration(seconds: float) -> str:
    """Write a time for people."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 100 else f"{hours:.1f} h"


@contextmanager
def _progress() -> Iterator[Report]:
    """Show how many cells are done, and when the rest will be: a bar, or now and then a line."""
    if common.TOLD.quiet or not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(), TextColumn("{task.description}"),
        console=Console(stderr=True), transient=True,
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=None)

        def report(done: int, total: int, failed: int) -> None:
            text = f"{failed:,} failed" if failed else ""
            bar.update(task, completed=done, total=total, description=text)

        yield report


def _lines() -> Report:
    begun = told = time.monotonic()

    def report(done: int, total: int, failed: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= common.SELDOM and done:
            told = now
            left = _duration((now - begun) * (total - done) / done)
            text = f", {failed:,} failed" if failed else ""
            common.aside(f"{now - begun:5.0f} s  {done:,}/{total:,} cells{text}, {left} left")

    return report
