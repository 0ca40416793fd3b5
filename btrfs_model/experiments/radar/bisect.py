# SPDX-License-Identifier: GPL-2.0-only
"""Which of several kernels is the first whose answer to a scenario is another one."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.behaviour import Behaviour, preset_of, version
from btrfs_model.experiments.radar.answers import Answer, done, first_difference, modelled, said
from btrfs_model.experiments.radar.groups import words_for
from btrfs_model.experiments.radar.titles import Title, between, ranked
from btrfs_model.experiments.scenario.load import Scenario, lines_of
from btrfs_model.kernels.choice import AtHand, at_hand, start
from btrfs_model.patches import Patch

_RUNS = 3
"""Threads of a kernel come to their work by chance: it answers alike when one run of it does."""
_MEMORY = 1 << 30
_LONG = 300
"""Characters of what a kernel says."""


@dataclass
class Change:
    """Where the answer changes.

    Attributes
    ----------
    kernels : list of AtHand
        All that there are between the two, in the order of releases.
    asked : dict
        Whether a kernel that was asked answers as the first does, by name.
    where : list of str
        What of the answer differs; empty where nothing does.
    before, after : object
        What the last kernel says with the old answer, and the first with a new one.
    toggles : list of tuple
        Toggles in which the model differs between these two, each with ``+`` or ``-``, and whether
        the model's own answer changes with it; those first.
    titles : list of tuple
        Commits of the releases between, those first whose titles fit best.
    """

    kernels: list[AtHand]
    asked: dict[str, bool] = field(default_factory=dict)
    where: list[str] = field(default_factory=list)
    before: Any = None
    after: Any = None
    toggles: list[tuple[str, Patch, bool]] = field(default_factory=list)
    titles: list[tuple[Title, list[str]]] = field(default_factory=list)

    @property
    def edge(self) -> tuple[AtHand, AtHand] | None:
        """The last kernel with the old answer and the first with another one."""
        there = [one for one in self.kernels if one.name in self.asked]
        return next((pair for pair in pairwise(there)
                     if self.asked[pair[0].name] and not self.asked[pair[1].name]),
                    None)  # fmt: skip


def kernels_between(names: Sequence[str], first: str, last: str) -> list[AtHand]:
    """Return the kernels from one release up to another, of those named or all that are here.

    `first` and `last`: a kernel's name or release, or empty.

    Raises
    ------
    KernelMissingError
        When one is not here, or fewer than two are left.
    """
    there = at_hand(slow=True)
    for name in [*names, first, last]:
        if name and not any(name in one for one in there):
            known = ", ".join(f"{one.name} ({one.release})" for one in there)
            raise KernelMissingError(f"{name} is not here; there are {known}")
    releases = {one.name: one.release for one in there}
    low, high = (version(releases.get(name, name)) if name else () for name in (first, last))
    found = [
        one
        for one in there
        if (not names or set(one) & set(names))
        and low <= version(one.release)
        and (not high or version(one.release) <= high)
    ]
    if len(found) < 2:
        names = ", ".join(one.name for one in found) or "none"
        raise KernelMissingError(f"two kernels at least are needed; there is {names}")
    return found


def bisected(scenario: Scenario, kernels: Sequence[AtHand], step: Callable[[str], None]) -> Change:
    """Look for the first kernel that answers a scenario otherwise than the first of all.

    As a bisect does: it takes the answer to change once. All kernels are asked of an image that the
    first one made.
    """
    change, answers = Change([*kernels]), dict[str, list[Answer]]()
    with TemporaryDirectory() as folder:
        image = Path(folder) / "image"

        def differs(one: AtHand) -> bool:
            step(f"{one.name} ({one.release})")
            answers[one.name] = _answers(one.name, scenario, image)
            first = answers[kernels[0].name]
            alike = any(mine == its for mine in answers[one.name] for its in first)
            change.asked[one.name] = alike
            return not alike

        differs(kernels[0])
        if differs(kernels[-1]):
            bisect.bisect_left(kernels[1:-1], True, key=differs)
    if change.edge:
        _tell(change, scenario, *(answers[one.name][0] for one in change.edge))
    return change


def _answers(name: str, scenario: Scenario, image: Path) -> list[Answer]:
    """Return what a kernel answers in some runs; the first kernel makes the image."""
    with start(name, memory=_MEMORY) as kernel:
        kept = None if image.exists() else image
        runs = [done(kernel, scenario, kept), *(done(kernel, scenario) for _ in range(_RUNS - 1))]
        spoken = said(kernel, scenario, image)
    return [{**run, **spoken} for run in runs]


def _tell(change: Change, scenario: Scenario, before: Answer, after: Answer) -> None:
    """Find what differs, and what may be behind it."""
    assert change.edge
    old, new = (one.release for one in change.edge)
    found = first_difference(before, after)
    if found:
        change.where, change.before, change.after = found
    change.toggles = sorted(_toggles(scenario, preset_of(old), preset_of(new)),
                            key=lambda one: not one[2])  # fmt: skip
    words = words_for("", change.where, lines_of(scenario))
    change.titles = ranked(words, between(old, new))


def _toggles(scenario: Scenario, old: str, new: str) -> Iterator[tuple[str, Patch, bool]]:
    """Yield the toggles between two presets, and whether each changes the model's answer."""
    had, has = Behaviour.parse(old), Behaviour.parse(new)
    with TemporaryDirectory() as folder:
        answer = modelled(scenario, new, Path(folder))
        for patch in (one for one in Patch if (one in had) != (one in has)):
            back = f"{new} {'-' if patch in has else '+'} {patch}"
            changes = modelled(scenario, back, Path(folder)) != answer
            yield "+" if patch in has else "-", patch, changes


def told(change: Change) -> dict[str, Any]:
    """Return what is told of a change, as plain values."""
    answers = {"True": "as the first", "False": "another"}
    old, new = change.edge or (None, None)
    return {
        "kernels": [{"kernel": one.name, "release": one.release,
                     "answer": answers.get(str(change.asked.get(one.name)), "not asked")}
                    for one in change.kernels],
        "before": old.release if old else "", "after": new.release if new else "",
        "where": "; ".join(change.where), "said_before": _cut(change.before),
        "said_after": _cut(change.after),
        "toggles": [{"toggle": f"{sign} {patch}", "model": "changes, too" if changes else "",
                     "commit": patch.commit, "title": patch.subject}
                    for sign, patch, changes in change.toggles],
        "titles": [one._asdict() for one, _ in change.titles],
    }  # fmt: skip


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]} ... ({len(text):,} characters)"
