# SPDX-License-Identifier: GPL-2.0-only
"""The times of a row through all releases: what made its script faster, and what slower."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pandas as pd

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import JUDGED, PRESETS, Behaviour
from btrfs_model.cost.causes import duration
from btrfs_model.cost.machine import Machine, chosen
from btrfs_model.experiments.atlas.rows import Figure, Row
from btrfs_model.experiments.atlas.runs import QUICK, seconds_of
from btrfs_model.experiments.numbers import times

_TELLING: Final = 0.01
"""Of a time; less is no change."""
COLUMNS: Final = ("row", "figure", "release", "seconds", "faster", "because")


def history(
    row: Row, scale: str, machine: str | Machine | None, step: Callable[[str], None]
) -> pd.DataFrame:
    """Run the script of a row on each release.

    Parameters
    ----------
    row, scale, machine
        As for :func:`btrfs_model.experiments.atlas.runs.run`.
    step : callable
        Is told what runs.

    Returns
    -------
    pandas.DataFrame
        For each time of the row a line for each release, from 4.16 on: ``seconds`` (NaN where the
        script does not run there), ``faster`` (how many times as fast as on the release before) and
        ``because``: the toggles of the release that make the difference, each with how many times
        as long it takes without that one.

    Raises
    ------
    BtrfsModelError
        For a row that has no script or no time, or whose script runs on no release.
    """
    figures = [one for one in row.figures if one.kind in ("ratio", "time") and not one.line]
    if not row.script or not figures:
        raise BtrfsModelError(f"{row.name}: a history wants a script, and a time")
    costs, quick = chosen(machine), row.quick if scale == QUICK else {}
    known: dict[frozenset[str], list[float]] = {}

    def ran(name: str) -> list[float]:
        """Return the seconds of the figures; NaN where the script fails."""
        toggles = frozenset(map(str, Behaviour.parse(name)))
        if toggles not in known:
            step(f"{row.name}: {name}")
            try:
                known[toggles] = seconds_of(row, name, figures, quick, costs)
            except BtrfsModelError:
                known[toggles] = [float("nan")] * len(figures)
        return known[toggles]

    releases = [name for name in PRESETS if name not in JUDGED]
    lines: list[tuple[object, ...]] = []
    for place, one in enumerate(figures):
        lines += _lines(row, one, releases, lambda name: ran(name)[place])  # noqa: B023 (called now)
    found = pd.DataFrame(lines, columns=list(COLUMNS))
    if found.seconds.isna().all():
        raise BtrfsModelError(f"{row.name}: its script runs on no release")
    return found


def _lines(
    row: Row, one: Figure, releases: Sequence[str], ran: Callable[[str], float]
) -> Iterator[tuple[object, ...]]:
    """Yield the lines of a figure."""
    before, last = float("nan"), ""
    for release in releases:
        seconds = ran(release)
        faster, because = before / seconds, ""
        if abs(faster - 1) > _TELLING:
            new = set(Behaviour.parse(release)) - set(Behaviour.parse(last))
            without = {toggle: ran(f"{release} - {toggle}") / seconds for toggle in sorted(new)}
            because = ", ".join(f"{toggle} {times(ratio)}" for toggle, ratio in without.items()
                                if abs(ratio - 1) > _TELLING)  # fmt: skip
        yield row.name, one.name, release, seconds, faster, because
        before, last = seconds, release


def changes(found: pd.DataFrame) -> pd.DataFrame:
    """Return, as text, the first line of each figure and those of releases that differ."""
    first = ~found.duplicated(["row", "figure"])
    shown = found[first | ((found.faster - 1).abs() > _TELLING)]
    told: dict[str, Callable[[float], str]] = {"seconds": duration, "faster": times}
    return shown.assign(**{name: [("" if math.isnan(one) else say(one)) for one in shown[name]]
                           for name, say in told.items()})  # fmt: skip
