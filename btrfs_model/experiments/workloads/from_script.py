# SPDX-License-Identifier: GPL-2.0-only
"""A workload that is a shell script: its numbers are knobs, its timed regions are the times."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from btrfs_model.base.errors import BtrfsModelError
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
from btrfs_model.experiments.workloads.charts.changes import draw_changes
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.timed import MEMORY, Timed, yes_no
from btrfs_model.patches import Patch
from btrfs_model.scripts.answer import Region, regions, whole
from btrfs_model.scripts.find import scripts_in
from btrfs_model.scripts.run import ScriptResult, script
from btrfs_model.scripts.variables import Number, numbers, with_numbers
from btrfs_model.shell.parse import ShellSyntaxError
from btrfs_model.shell.state import ShellError
from btrfs_model.volume.filesystem import Filesystem

if TYPE_CHECKING:
    from matplotlib import figure

_QUICK: Final = 0.01
TAKEN: Final = frozenset((
    "workload", "nodesize", "device", "pipe", "worker", "cache", "fsync", "lines", "turn", "side",
    "behaviour", "quantity", "unit", "reported", "modelled", "low", "high", "measured",
    "measured_min", "measured_max", "runs", "error", "value", "machine", "behaviour_before",
    "behaviour_after", "flipped", "always_leaves", "always_nodes", "distance", "near",
    "compare_leaves", "compare_nodes", "siblings", "name_cache", "name_cache_kept",
    "dir_created_cache", "dir_utimes_cache", "backref_cache", "backref_cache_roots", "clone_refs",
    "fiemap_entries", "fiemap_prev_extents",
))  # fmt: skip
"""Names of columns of results and of other knobs: a variable of this name is no knob."""


def text_of(name: str, told: str | os.PathLike[str]) -> str:
    """Return a script: itself, or the one of a file, a mail, a patch or a commit message.

    Raises
    ------
    BtrfsModelError
        When there is none or more than one, or where a text is the name of a file.
    """
    if isinstance(told, str):
        if "\n" not in told and Path(told).is_file():
            raise BtrfsModelError(f"{name}: a file is given as a path: Path({told!r})")
        return told
    path = Path(told)
    found = scripts_in(path.read_text("utf-8", "surrogateescape"),
                       is_script=path.suffix in (".sh", ".bash"))  # fmt: skip
    if len(found) > 1:
        lines = ", ".join(str(one.line) for one in found)
        raise BtrfsModelError(
            f"{name}: {path} has {len(found)} scripts, at lines {lines}: give the text of one"
        )
    return found[0].text


def script_workload(
    name: str, text: str, toggles: tuple[Patch, ...], sides: tuple[Side, Side], size: str,
    summary: str,
) -> Workload:  # fmt: skip
    """Make a workload of a script; see :func:`btrfs_model.experiments.workloads.own.workload`."""
    try:
        known = {one: found for one, found in numbers(text).items() if one not in TAKEN}
    except ShellSyntaxError as error:
        raise BtrfsModelError(f"{name}: {error}") from error
    chosen = size or next((one for one, found in known.items() if found.value > 0), "")
    if chosen not in known or known[chosen].value < 1:
        there = ", ".join(known) or "none"
        raise BtrfsModelError(
            f"{name}: {size or 'there'} is no variable that the script sets once, to a number "
            f"above 0; those that it sets so: {there}"
        )
    full = {chosen: known[chosen].value, **{one: found.value for one, found in known.items()}}
    quick = max(1, round(full[chosen] * _QUICK))
    return _Script(
        name=name,
        toggles=toggles,
        summary=(summary,) if summary else (),
        caveats=(),
        inputs=(Input(None, "", quick / full[chosen], {**full, chosen: quick}),
                Input(None, "", 1.0, full)),
        headline=("time",),
        compared=sides,
        groups=(Group("Times", ("time",)), Group("Work")),
        knobs=("device", "parameters"),
        keeps=False,
        arguments=tuple(one for one in full if one != chosen),
        bytes_each=0,  # nobody knows what its size is a number of
        fresh=True,
        text=text,
        known=known,
    )  # fmt: skip


class _Ran:
    """What scripts did, by what is on their filesystem; a copy in another process knows none."""

    def __init__(self) -> None:
        self.found: WeakKeyDictionary[Filesystem, tuple[list[Region], str]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[_Ran], tuple[()]]:
        return _Ran, ()


@dataclass(frozen=True, eq=False, kw_only=True)
class _Script(Workload):
    """A workload of a script, which makes its filesystem itself."""

    text: str
    known: dict[str, Number]
    ran: _Ran = field(default_factory=_Ran)

    def build(self, size: Input, knobs: Knobs, step: Step = silent) -> Filesystem:
        turned = {one: value for one, value in size.parameters.items()
                  if one in self.known and value != self.known[one].value}  # fmt: skip
        for one, value in turned.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise BtrfsModelError(f"{self.name}: {one} = {value!r}: not a whole number")
        device = next(iter(knobs.devices()), None)
        try:
            result = script(
                with_numbers(self.text, turned), behaviour=mount_kernel(None),
                machine=knobs.machine, device=device or "",
            )  # fmt: skip
        except ShellError as error:
            raise BtrfsModelError(f"{self.name}: {error}") from error
        fs = self._kept(result)
        every = whole(result)
        assert every is not None  # it has made a filesystem
        self.ran.found[fs] = regions(result) or [every], result.device or MEMORY
        return fs

    def _kept(self, result: ScriptResult) -> Filesystem:
        """Return the last filesystem of a script, and close the others."""
        *others, last = [None, *result.filesystems.values()]
        for fs in others:
            if fs is not None:
                fs.close()
        if last is None:
            said = result.output.decode(errors="replace").strip().split("\n")[-1]
            raise BtrfsModelError(f"{self.name}: the script leaves no filesystem; it says: {said}")
        return last

    def measure(
        self, fs: Filesystem, size: Input, side: Side, knobs: Knobs, step: Step = silent
    ) -> Outcome:
        found, device = self.ran.found[fs]
        figures, timed = [], []
        several = Counter(one.lines for one in found)
        turns: Counter[tuple[int, int]] = Counter()
        conditions = {"device": device, "pipe": yes_no(False), "worker": yes_no(False)}
        for one in found:
            case: dict[str, int | str] = {"lines": one.where}
            if several[one.lines] > 1:
                turns[one.lines] += 1
                case["turn"] = turns[one.lines]
            timed.append(Timed(side.name, "time", "s", case, one.work, one.waits,
                               conditions=conditions))  # fmt: skip
            figures += [Figure(side.name, name, "calls", case, modelled=float(count))
                        for name, count in sorted(one.work.items())]  # fmt: skip
        return Outcome(figures, timed=timed)

    def draw(self, outcome: Outcome) -> figure.Figure:
        return draw_changes(outcome)

    def functions(self) -> tuple[Callable[..., object] | str, ...]:
        return self.text, *(side.behaviour for side in self.compared)
