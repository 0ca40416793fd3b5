# SPDX-License-Identifier: GPL-2.0-only
"""A workload of your own: a filesystem, what is asked of it, and the toggles that it is about."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import ref

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError, UnknownNameError
from btrfs_model.behaviour import mount_kernel
from btrfs_model.experiments.evidence import toggles_of
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
from btrfs_model.experiments.workloads.charts.changes import draw_changes
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


@checked
def workload(
    name: str,
    build: Callable[..., Filesystem] | None = None,
    measure: Callable[..., SendResult | Mapping[str, int]] | None = None,
    toggles: str | Iterable[str] = (),
    *,
    files: int = 10_000,
    summary: str = "",
    script: str | os.PathLike[str] | None = None,
    commit: str = "",
    size: str = "",
) -> Workload:
    """Make a workload, which ``bm.replay()`` replays before and after some toggles.

    It is two functions, `build` and `measure`, or a `script`.

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
    script : str or os.PathLike, optional
        A script for bash, or the path of a file that has one: a script, a mail, a patch, a commit
        message. It makes its filesystem itself. Knobs are the variables that it sets once, to a
        number (``NUM_FILES=1000000``); what is counted and timed are its regions between two
        readings of the clock, or all of it.
    commit : str
        Of a script, in place of toggles: it runs right before this commit of the table, and right
        after it.
    size : str
        Of a script, the variable that a scale turns: the first one without it.

    Returns
    -------
    Workload
        For ``bm.replay()``. As an entry point of the group ``btrfs_model.workloads`` the command
        line finds it by that name.

    Raises
    ------
    UnknownNameError
        When there is no such toggle.
    BtrfsModelError
        For a script that is none, or has no number to turn.
    """
    patches = _patches(name, toggles, commit)
    later = dict.fromkeys(one for patch in patches for one in patch.needed_by)
    after = " - ".join((KERNEL, *(one for one in later if one not in patches)))
    if script is not None:
        if build is not None or measure is not None:
            raise BtrfsModelError(f"{name}: a script comes without build and measure")
        # its parser and its jobs are an extra
        from btrfs_model.experiments.workloads.from_script import script_workload, text_of

        sides = _sides(commit, patches, after)
        return script_workload(name, text_of(name, script), patches, sides, size, summary)
    if build is None or measure is None:
        raise BtrfsModelError(f"{name}: a workload is build and measure, or a script")
    if commit or size:
        raise BtrfsModelError(f"{name}: commit and size are of a script")
    takes_build = set(signature(build).parameters)
    takes = {*takes_build, *signature(measure).parameters}
    full, quick = Input(None, "", 1.0, {"files": files}), max(1, round(files * _QUICK))
    return _Own(
        name=name,
        toggles=patches,
        summary=(summary,) if summary else (),
        caveats=(),
        inputs=(Input(None, "", quick / files, {"files": quick}), full),
        headline=(),
        compared=_sides("", patches, after),
        groups=(Group("Work"),),
        knobs=tuple(knob for knob in ("limits", "nodesize") if knob in takes),
        keeps=False,
        arguments=tuple(takes_build - {"files", "nodesize", "behaviour"}),
        fresh=True,
        makes=build,
        asks=measure,
    )


def _patches(name: str, toggles: str | Iterable[str], commit: str) -> tuple[Patch, ...]:
    """Return what the two sides differ in."""
    slugs = (toggles,) if isinstance(toggles, str) else tuple(toggles)
    if commit and slugs:
        raise BtrfsModelError(f"{name}: a commit stands in the place of toggles")
    slugs = tuple(toggles_of(commit)) if commit else slugs
    if not slugs:
        raise BtrfsModelError(f"{name}: toggles are wanted: what the two sides differ in")
    known = {str(patch): patch for patch in Patch}
    for slug in slugs:
        if slug not in known:
            raise UnknownNameError("commit" if commit else "toggle", slug, Patch)
    return tuple(known[slug] for slug in slugs)


def _sides(commit: str, toggles: Iterable[Patch], after: str) -> tuple[Side, Side]:
    """Return the sides of a commit, or of toggles that are taken from a kernel."""
    if commit:
        return Side("before", f"{commit}^"), Side("after", commit)
    return Side("before", " - ".join((after, *map(str, toggles)))), Side("after", after)


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
        return draw_changes(outcome)

    def functions(self) -> tuple[Callable[..., object] | str, ...]:
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
