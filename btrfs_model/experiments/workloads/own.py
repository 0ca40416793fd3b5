# SPDX-License-Identifier: GPL-2.0-only
"""A workload of one's own: a filesystem, what is asked of it, and the toggles that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import UnknownNameError
from btrfs_model.cost.machine import Machine
from btrfs_model.experiments.workloads import Figure, Group, Input, Outcome, Side, Step, Workload
from btrfs_model.experiments.workloads.timed import Timed
from btrfs_model.patches import KERNEL, Patch
from btrfs_model.questions.send.ioctl import SendResult
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

_QUICK = 0.01
_MOST_BARS = 12


@checked
def workload(
    name: str,
    build: Callable[..., Filesystem],
    measure: Callable[..., SendResult | Mapping[str, int]],
    toggles: str | Iterable[str],
    *,
    files: int = 10_000,
    summary: str = "",
) -> Workload:
    """Make a workload, which ``bm.replay()`` replays before and after some toggles.

    Parameters
    ----------
    name : str
        Its name.
    build : callable
        ``build(files)`` makes the filesystem, the same each time. One that takes `nodesize` as well
        has that knob.
    measure : callable
        ``measure(fs, behaviour)`` asks a question and gives what is counted: the result of a send,
        or counts by name, such as those of ``bm.counting()``. It leaves the filesystem as it was.
        One that takes `limits` as well has that knob.
    toggles : str or iterable of str
        What the two sides differ in: the newest kernel without them, and with them.
    files : int
        The size at full scale; ``quick`` is a hundredth.
    summary : str
        A paragraph for the report.

    Returns
    -------
    Workload
        For ``bm.replay()``. As an entry point of the group ``btrfs_model.workloads`` the command
        line finds it by that name.

    Raises
    ------
    UnknownNameError
        When there is no such toggle.
    """
    slugs = (toggles,) if isinstance(toggles, str) else tuple(toggles)
    known = {str(patch): patch for patch in Patch}
    for slug in slugs:
        if slug not in known:
            raise UnknownNameError("toggle", slug, Patch)

    def scaled(scale: float) -> Input:
        count = max(1, round(files * scale))
        return Input(None, "", count / files, {"files": count})

    def made(source: Input, _: Step) -> Filesystem:
        return build(**source.parameters)

    def run(
        fs: Filesystem,
        source: Input,
        chosen: tuple[Side, ...],
        step: Step,
        machine: Machine,
        **turned: Any,
    ) -> Outcome:
        outcome = Outcome([])
        for side in chosen:
            step(f"{side.name}: measuring")
            found = outcome_of(side.name, measure(fs, side.behaviour, **turned))
            outcome.figures += found.figures
            outcome.timed += found.timed
        return outcome

    takes = {*signature(build).parameters, *signature(measure).parameters}
    return Workload(
        name=name,
        toggles=tuple(known[slug] for slug in slugs),
        summary=(summary,) if summary else (),
        caveats=(),
        inputs=(scaled(_QUICK), scaled(1.0)),
        headline=(),
        compared=(Side("before", " - ".join((KERNEL, *slugs))), Side("after", KERNEL)),
        run=run,
        draw=_draw,
        groups=(Group("Work"),),
        scaled=scaled,
        build=made,
        knobs=tuple(knob for knob in ("limits", "nodesize") if knob in takes),
        arguments=tuple(set(signature(build).parameters) - {"files", "nodesize"}),
    )


def outcome_of(side: str, found: SendResult | Mapping[str, int]) -> Outcome:
    """Return what was counted on a side, and the time of it."""
    rows: list[tuple[str, str, int]] = []
    if not isinstance(found, SendResult):
        counts = amounts = found
    else:
        counts, amounts = found.work, found.amounts
        rows = [("stream size", "bytes", found.size)]
        rows += [(f"command {one}", "commands", count) for one, count in found.commands.items()]
    rows += [(one, "calls", count) for one, count in sorted(counts.items())]
    figures = [Figure(side, one, unit, modelled=float(count)) for one, unit, count in rows]
    return Outcome(figures, timed=[Timed(side, "time", "s", {}, dict(amounts))])


def _draw(outcome: Outcome) -> figure.Figure:
    """Draw what differs: how many times as much of it there is before as after."""
    from matplotlib.figure import Figure as Chart

    pairs = {
        one.quantity: (one.modelled, after.modelled)
        for one in outcome.figures
        if one.side == "before" and (after := outcome.find("after", one.quantity))
    }
    ratios = {name: before / after for name, (before, after) in pairs.items() if before and after}
    shown = sorted(ratios, key=lambda name: abs(ratios[name] - 1))[-_MOST_BARS:]
    chart = Chart(figsize=(8, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = chart.subplots()
    axes.barh(shown, [ratios[name] for name in shown])
    axes.set_xlabel("times as much before as after")
    return chart
