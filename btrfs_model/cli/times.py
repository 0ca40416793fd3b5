# SPDX-License-Identifier: GPL-2.0-only
"""Times beside work: what commands tell of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from btrfs_model.cli.common import print_table

if TYPE_CHECKING:
    from btrfs_model.cost.machine import Machine


def timed_on(machine: str | None, work: Path | None, *, wanted: bool = False) -> Machine | None:
    """Return the machine that the time is to be told of; None where it is not.

    It is told where it is `wanted` or a machine is named, and beside work (`--work`) on a terminal.
    """
    from btrfs_model.cost.machine import chosen

    beside = work is not None and sys.stderr.isatty()
    return chosen(machine) if wanted or machine is not None or beside else None


def print_time(
    what: str, machine: Machine, work: Mapping[str, float], *, device: float = 0, err: bool = True
) -> None:
    """Print how long work takes on a machine, and what the time goes into.

    Parameters
    ----------
    what : str
        What is done.
    machine, work, device
        As for :func:`btrfs_model.cost.prediction.predict`.
    err : bool
        Whether to print to standard error.
    """
    from btrfs_model.cost.prediction import NoCostError, predict

    try:
        time = predict(machine, work, device)
    except NoCostError:
        click.echo(f"{what}: no time: nothing of the work has a cost on {machine.name}", err=err)
        return
    click.echo(f"{what}: {time} on {machine.name}", err=err)
    for line in time.split():
        click.echo(f"  {line}", err=err)


def print_profile(machine: Machine, work: Mapping[str, float], *, as_json: bool, err: bool) -> None:
    """Print where the time of work goes, by what is counted: mostly functions of the kernel."""
    import pandas as pd

    from btrfs_model.cost.prediction import by_function

    rows = by_function(machine, work)
    whole = sum(seconds for *_, seconds in rows)
    table = pd.DataFrame(
        [
            (name, round(count), f"{seconds * 1e3:.3f}", f"{100 * seconds / whole:.1f}")
            for name, count, seconds in rows
            if seconds
        ],
        columns=["function", "calls", "ms", "percent"],
    )
    title = f"time by function on {machine.name}"
    print_table(table, as_json=as_json, title=title, err=err)
