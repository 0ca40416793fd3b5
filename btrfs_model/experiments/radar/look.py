# SPDX-License-Identifier: GPL-2.0-only
"""Going through scenarios on kernels, and asking the others that are here."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from btrfs_model.base.errors import KernelFailedError, KernelHungError, KernelMissingError
from btrfs_model.behaviour import JUDGED, preset_of, version
from btrfs_model.experiments.radar.groups import Group, grouped, set_beside
from btrfs_model.experiments.radar.titles import between, titles
from btrfs_model.experiments.verify.run import Outcome, Task, verify
from btrfs_model.kernels.choice import at_hand

_FEW, _MOST, _MANY = 10_000, 1_000_000, 100_000
_OF_SEEDS: Final = 0.5
"""The share of the time that scenarios from seeds get; then comes the corpus."""


@dataclass
class Radar:
    """What was found.

    Attributes
    ----------
    behaviour : str
        What the model did; empty: what each kernel stands for.
    groups : list of Group
        Causes of differences, the most frequent first.
    cases, units : Counter
        How many scenarios were compared, and how much in them, by release of the kernel and kind
        (and unit).
    commits : dict
        First and last release of the commits that groups are set beside, by release of the kernel.
    missed : list of str
        What was not asked, and why.
    """

    behaviour: str
    groups: list[Group] = field(default_factory=list)
    cases: Counter[tuple[str, str]] = field(default_factory=Counter)
    units: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    commits: dict[str, tuple[str, str]] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    @property
    def releases(self) -> list[str]:
        """The kernels that were asked."""
        return sorted({release for release, _ in self.cases}, key=version)


def look(
    kernels: Sequence[str],
    kinds: Sequence[str],
    seeds: int | None,
    minutes: float | None,
    behaviour: str,
    corpus: Path | None,
    step: Callable[[str], None],
    seen: Callable[[Outcome], None],
) -> Radar:
    """Compare kernels with the model on all kinds of scenarios, and look for what is behind it.

    Parameters
    ----------
    kernels : sequence of str
        As for :func:`btrfs_model.kernels.choice.start`.
    kinds : sequence of str
        What is compared.
    seeds : int, optional
        On so many scenarios of each kind; without it as many as there is time for.
    minutes : float, optional
        When nothing is begun any more: half for seeds, the rest for the corpus.
    behaviour : str
        What the model does, in place of what a kernel stands for.
    corpus : pathlib.Path, optional
        A folder of scenarios.
    step, seen : callable
        As for :func:`btrfs_model.experiments.verify.run.verify`.

    Raises
    ------
    KernelMissingError, KernelFailedError
        When a kernel cannot be had, or its process ends early.
    """
    began, seconds = time.time(), 60 * minutes if minutes else float("inf")
    number = seeds or (_MANY if minutes else 0)
    most = min(_MOST, round(_FEW * max(minutes or 1, 1)))
    share = _OF_SEEDS if corpus else 1
    first = [Task(kernel, list(kinds), list(range(number)), most, began + share * seconds,
                  behaviour=behaviour, toggles=True, once=True)
             for kernel in dict.fromkeys(kernels)]  # fmt: skip
    found = [*verify(first, step, seen)]
    if corpus:
        known = [*dict.fromkeys(one.toggles[0] for one in found if one.toggles and one.tried)]
        found += verify(
            [replace(task, seeds=[], until=began + seconds, corpus=str(corpus), known=known)
             for task in first], step, seen)  # fmt: skip
    return _gathered([one for one in found if not one.reach], behaviour, step)


def _gathered(found: Sequence[Outcome], behaviour: str, step: Callable[[str], None]) -> Radar:
    radar = Radar(behaviour, grouped(found))
    for one in found:
        radar.cases[one.release, one.kind] += 1
        for unit, amount in one.compared.items():
            radar.units[one.release, one.kind, unit] += amount
    for release in radar.releases:
        radar.commits[release] = _releases(behaviour, release)
    _ask_others(radar, step)
    for group in radar.groups:
        first, last = radar.commits[group.example.release]
        set_beside(group, between(_after(group, first), last))
    return radar


def _releases(behaviour: str, release: str) -> tuple[str, str]:
    """Return from which release up to which a kernel may have what the model does not have."""
    name, *_ = behaviour.split()[:1] or [""]
    older = [one for one in JUDGED if version(one)[:2] < version(preset_of(release))[:2]]
    return name or older[-1], release


def _after(group: Group, first: str) -> str:
    """Return the release of the newest older kernel that does as the model does."""
    without = [
        one
        for one, differs in group.asked.items()
        if not differs and version(first) < version(one) < version(group.example.release)
    ]
    return max(without, key=version, default=first)


def _ask_others(radar: Radar, step: Callable[[str], None]) -> None:
    """Let other kernels do the examples, each beside the model of that kernel."""
    examples = {
        f"{group.example.kind}-{number:04}.json": group
        for number, group in enumerate(radar.groups)
        if group.example.scenario
    }
    others = [one for one in at_hand() if one.release not in radar.releases] if examples else []
    with TemporaryDirectory() as folder:
        for name, group in examples.items():
            doc = {"hex_values": True, "ops": group.example.scenario}
            (Path(folder) / name).write_text(json.dumps(doc))
        kinds = sorted({group.example.kind for group in examples.values()})
        for other in others:
            task = Task(other.name, kinds, [], corpus=folder, short=False)
            try:
                for one in verify([task], step):
                    # log and replay share their files: each example is of one kind
                    if not one.reach and one.kind == one.case.partition("-")[0]:
                        examples[one.case].asked[one.release] = bool(one.difference)
            except (KernelMissingError, KernelFailedError, KernelHungError) as error:
                radar.missed.append(f"{other.name}: {error}")


# ---------------------------------------------------------------------------------------- rows --


def rows_of(radar: Radar) -> Iterator[dict[str, Any]]:
    """Yield what is told of each group, as plain values."""
    for group in radar.groups:
        patch, example = group.patch, group.example
        yield {
            "cause": group.name, "toggle": str(patch or ""), "others": group.others,
            "commit": patch.commit if patch else "", "title": patch.subject if patch else "",
            "since": group.since, "asked": group.asked,
            "often": [{"kernel": release, "kind": kind, "differ": number,
                       "of": radar.cases[release, kind]}
                      for (release, kind), number in group.counted.items()],
            "kernel": example.release, "kind": example.kind, "case": example.case,
            "difference": example.difference, "shape": group.shape,
            "example": example.scenario, "by_kernel": example.by_kernel,
            "by_model": example.by_model,
            "titles": [{**one._asdict(), "for": words} for one, words in group.titles],
        }  # fmt: skip


def often(radar: Radar, group: Group) -> str:
    """Say how often a group's difference came."""
    several = len(radar.releases) > 1
    return ", ".join(
        f"{number} of {radar.cases[release, kind]} {kind}{f' on {release}' if several else ''}"
        for (release, kind), number in group.counted.most_common()
    )


def of_titles(radar: Radar) -> str:
    """Say which commits groups were set beside."""
    parts = []
    for release, (first, last) in radar.commits.items():
        there = [one.release for one in between(first, last)] or ["none", "none"]
        parts.append(f"Linux {release}: those of {there[0]} to {there[-1]}")
    newest = titles()[-1].release
    return f"Titles of commits are suggestions. {'; '.join(parts)}; the list ends at {newest}."
