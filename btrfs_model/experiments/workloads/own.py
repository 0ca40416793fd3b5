# SPDX-License-Identifier: GPL-2.0-only
"""A workload of your own: a filesystem, what is asked of it, and the toggles that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import ref

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, UnknownNameError
from btrfs_model.behaviour import mount_kernel
from btrfs_model.experiments.workloads import (
    Figure,
    Group,
    Input,
    Outcome,
    Side,
    Step,
    Workload,
    silent,
)
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.timed import MEMORY, Timed, yes_no
from btrfs_model.limits import Limits
from btrfs_model.mount.mount import Mount
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
        ``build(files)`` makes the filesystem, the same each time and anew each time. It is called
        for each side, and what it makes is mounted by the kernel of that side; one that takes
        `behaviour` gets that kernel. One that takes `nodesize` as well has that knob.
    measure : callable
        ``measure(fs, behaviour)`` asks a question and gives what is counted: the result of a send,
        or counts by name, such as those of ``bm.counting()``. It may change the filesystem, as an
        fsync does: the other side has its own. One that takes `limits` as well has that knob.
    toggles : str or iterable of str
        What the two sides differ in: the newest kernel without them, and with them. Later toggles
        that have no meaning without them are in neither.
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

    takes_build = set(signature(build).parameters)
    takes = {*takes_build, *signature(measure).parameters}
    later = dict.fromkeys(one for slug in slugs for one in known[slug].needed_by)
    after = " - ".join((KERNEL, *(one for one in later if one not in slugs)))
    full, quick = Input(None, "", 1.0, {"files": files}), max(1, round(files * _QUICK))
    return _Own(
        name=name,
        toggles=tuple(known[slug] for slug in slugs),
        summary=(summary,) if summary else (),
        caveats=(),
        inputs=(Input(None, "", quick / files, {"files": quick}), full),
        headline=(),
        compared=(Side("before", " - ".join((after, *slugs))), Side("after", after)),
        groups=(Group("Work"),),
        knobs=tuple(knob for knob in ("limits", "nodesize") if knob in takes),
        keeps=False,
        arguments=tuple(takes_build - {"files", "nodesize", "behaviour"}),
        fresh=True,
        makes=build,
        asks=measure,
    )


class _Last:
    """The filesystem that was built last; a copy in another process knows none."""

    def __init__(self) -> None:
        self.found: ref[Filesystem] | None = None

    def __reduce__(self) -> tuple[type[_Last], tuple[()]]:
        return _Last, ()

    def was(self, fs: Filesystem) -> bool:
        """Whether it is this one."""
        return self.found is not None and self.found() is fs


@dataclass(frozen=True, eq=False, kw_only=True)
class _Own(Workload):
    """A workload of two functions."""

    makes: Callable[..., Filesystem]
    asks: Callable[..., SendResult | Mapping[str, int]]
    last: _Last = field(default_factory=_Last)

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        given: dict[str, Any] = {**size.parameters}
        if knobs.nodesize:
            given["nodesize"] = knobs.nodesize
        if "behaviour" in signature(self.makes).parameters:
            given["behaviour"] = str(mount_kernel(None))
        fs = self.makes(**given)
        if self.last.was(fs):
            raise BtrfsModelError(
                f"{self.name}: build gave the same filesystem again, not a fresh one"
            )
        self.last.found = ref(fs)
        return fs

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        step(f"{side.name}: measuring")
        given = {"limits": Limits.of(knobs.limits)} if knobs.limits else {}
        return outcome_of(side.name, self.asks(fs, side.behaviour, **given), fs)

    def draw(self, outcome: Outcome) -> figure.Figure:
        return _draw(outcome)

    def functions(self) -> tuple[Callable[..., object], ...]:
        return self.makes, self.asks


def outcome_of(
    side: str, found: SendResult | Mapping[str, int], fs: Filesystem | None = None
) -> Outcome:
    """Return what was counted on a side, and the time of it; `fs` was asked."""
    rows: list[tuple[str, str, int]] = []
    if not isinstance(found, SendResult):
        counts = amounts = found
    else:
        counts, amounts = found.work, found.amounts
        rows = [("stream size", "bytes", found.size)]
        rows += [(f"command {one}", "commands", count) for one, count in found.commands.items()]
    rows += [(one, "calls", count) for one, count in sorted(counts.items())]
    figures = [Figure(side, one, unit, modelled=float(count)) for one, unit, count in rows]
    timed = Timed(side, "time", "s", {}, dict(amounts), conditions=_conditions(fs))
    return Outcome(figures, timed=[timed])


def _conditions(fs: Filesystem | None) -> dict[str, str]:
    """Say what a time was predicted for: everything in memory, and whether there is a worker."""
    worker = {"worker": yes_no(fs.machine.asynchronous)} if isinstance(fs, Mount) else {}
    return {"device": MEMORY, "pipe": yes_no(False), **worker}


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
