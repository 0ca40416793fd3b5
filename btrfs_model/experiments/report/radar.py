# SPDX-License-Identifier: GPL-2.0-only
"""The page of what kernels do that the model does not."""

from __future__ import annotations

import json
import platform
from typing import Any, Final

from btrfs_model.base.charts import COLOURS
from btrfs_model.experiments.radar.groups import Group
from btrfs_model.experiments.radar.look import Radar, of_titles, often
from btrfs_model.experiments.report.page import Cell, template

_LONG: Final = 1500
"""Characters of what a side says."""
HEADINGS: Final = ("cause", "how often", "since", "commit")


def page(radar: Radar, version: str) -> str:
    """Return what was found as HTML that needs nothing but itself; `version`: of the model."""
    return template("radar.html.j2").render(
        radar=radar, releases=radar.releases, headings=HEADINGS, version=version, colours=COLOURS,
        rows=[cells(radar, group) for group in radar.groups], compared=_compared(radar),
        groups=[_told(radar, group, at) for at, group in enumerate(radar.groups, 1)],
        titles=of_titles(radar), machine=platform.platform(),
    )  # fmt: skip


def cells(radar: Radar, group: Group) -> tuple[str, ...]:
    """Return a row of the table of causes."""
    best = group.titles[0][0] if group.titles else None
    shown = f"{best.commit} {best.title} ({best.release})".strip() if best else ""
    if best and not group.change:
        shown = f"perhaps {shown}"
    return group.name, often(radar, group), group.since, shown


def _compared(radar: Radar) -> list[tuple[Cell, ...]]:
    """Return a row for each kernel and kind: how much was compared."""
    found: list[tuple[Cell, ...]] = []
    for (release, kind), number in radar.cases.items():
        units = ", ".join(f"{amount:,} {unit}" for (*whose, unit), amount in radar.units.items()
                          if whose == [release, kind])  # fmt: skip
        differ = sum(group.counted[release, kind] for group in radar.groups)
        found.append((f"{release}: {kind}", str(number), units, str(differ)))
    return found


def _told(radar: Radar, group: Group, number: int) -> dict[str, Any]:
    example, patch = group.example, group.patch
    asked = [f"{release}: {'differs' if differs else 'no difference'}"
             for release, differs in group.asked.items()]  # fmt: skip
    return {
        "name": group.name, "id": f"cause-{number}", "often": often(radar, group),
        "since": group.since, "patch": patch, "asked": asked, "others": group.others,
        "shape": "; ".join(group.shape), "example": example,
        "lines": [json.dumps(line) for line in example.scenario],
        "kernel": _cut(example.by_kernel), "model": _cut(example.by_model),
        "titles": [(one.title, one.release, one.commit or "not known", ", ".join(words) or "the "
                    "toggle's own") for one, words in group.titles],
    }  # fmt: skip


def _cut(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:_LONG]} ... ({len(text):,} characters)"
