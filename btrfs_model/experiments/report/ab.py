# SPDX-License-Identifier: GPL-2.0-only
"""The page of a comparison of two kernels."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from btrfs_model.base.charts import COLOURS
from btrfs_model.experiments.ab.compare import Comparison
from btrfs_model.experiments.ab.rows import HEADINGS, Row
from btrfs_model.experiments.report.page import template


def page(one: Comparison, version: str) -> str:
    """Return a comparison as HTML that needs nothing but itself; `version`: of the model."""
    return template("ab.html.j2").render(
        one=one, title=one.title, known=known(one), headings=HEADINGS, version=version,
        measured=_by_workload(one.rows), counts=_by_workload(one.counts),
        agreed={name: _agreed(one, name) for name in one.settings}, colours=COLOURS,
        patch=one.change.diff.decode("utf-8", "replace"), machine=platform.platform(),
    )  # fmt: skip


def known(one: Comparison) -> str:
    """Say what is known of a change."""
    if not one.toggles:
        return "The model does not know this change: nothing is predicted."
    sides = "; ".join(f"{side}: {behaviour}" for side, behaviour in one.behaviours.items())
    reported = "".join(f" What is reported is of its message ({message.release})."
                       for message in one.messages.values())  # fmt: skip
    return f"The model knows it: {sides}.{reported}"


def _agreed(one: Comparison, workload: str) -> str:
    if workload not in one.agreed:
        return ""
    compared, same = one.agreed[workload]
    return f"; of {compared} counts that the model has too, {same} are the same"


def _by_workload(rows: Sequence[Row]) -> dict[str, list[tuple[str, ...]]]:
    found: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        found.setdefault(row.workload, []).append(row.cells)
    return found
