# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios steered by what a kernel runs: those are kept that reach what none reached before.

A corpus is a folder of scenarios, each named by its kind, ``KIND-NAME.json``; of the kinds ``log``
and ``replay`` each is compared as both. ``unreachable-RELEASE.toml`` in it says which lines of this
kernel no scenario can reach, and why.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.experiments.scenario.operations import ScenarioError, Step, parse_step
from btrfs_model.kernels import gcov
from btrfs_model.kernels.inside import counted
from btrfs_model.kernels.uml import Uml

FILES = ("send.c", "tree-log.c", "backref.c", "ctree.c", "fiemap.c", "extent_io.c")
"""Files of ``fs/btrfs`` whose lines steer."""
_WHOLE = {"extent_io.c": "fiemap"}
"""Of this file only functions with this in their name; since 6.9 they have a file of their own."""
_LENGTHS = (1, 1, 2, 3, 8, 20)

_CRASHED = ("log", "replay")
_AS = {"log": _CRASHED, "replay": _CRASHED, "sequences": _CRASHED, "pairs": ("send",)}
"""As which kinds a scenario is compared."""

Place = tuple[Any, ...]


def unreachable(folder: Path, release: str) -> dict[tuple[str, str, int], dict[int, str]]:
    """Read which lines no scenario can reach.

    Parameters
    ----------
    folder : Path
        The corpus.
    release : str
        Of the kernel; the list is that of the newest one that is no newer.

    Returns
    -------
    dict
        By file, function and how many lines that has, its lines, the first of which is 0, with the
        reason. A function of another length is of another kernel.
    """
    lists = {
        _numbers(path.stem.partition("-")[2]): path for path in folder.glob("unreachable-*.toml")
    }
    known = [number for number in lists if number <= _numbers(release)]
    if not known:
        return {}
    doc = tomllib.loads(lists[max(known)].read_text())
    reasons = doc.pop("reasons")
    found = {}
    for file, functions in doc.items():
        for name, listed in functions.items():
            lines = {
                line: reasons[reason]
                for reason, text in listed.items() if reason != "lines"
                for part in text.split()
                for line in _range(part)
            }  # fmt: skip
            found[file, name, listed["lines"]] = lines
    return found


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


@dataclass(frozen=True)
class Function:
    """What of a function of the kernel ran.

    Attributes
    ----------
    lines, ran, branches, taken : int
        How many lines and branches it has, how many of them ran.
    unreachable : dict
        Lines that cannot be reached, and were not: how many by reason.
    left : list of int
        Other lines that did not run.
    wrong : list of int
        Lines that cannot be reached, and ran.
    """

    file: str
    function: str
    lines: int
    ran: int
    branches: int
    taken: int
    unreachable: dict[str, int]
    left: list[int]
    wrong: list[int]


@dataclass
class Reach:
    """What ran so far: lines and branches of :data:`FILES`, and how many there are.

    Attributes
    ----------
    listed : dict
        What cannot be reached: see :func:`unreachable`.
    """

    reached: set[Place] = field(default_factory=set)
    there: set[Place] = field(default_factory=set)
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    listed: dict[tuple[str, str, int], dict[int, str]] = field(default_factory=dict)

    def add(self, counts: gcov.Counts) -> set[Place]:
        """Add counts; what is new."""
        self.places.update(counts.places)
        of_fiemap = [
            range(first, last + 1) for name, (file, first, last) in counts.places.items()
            if file in _WHOLE and _WHOLE[file] in name
        ]  # fmt: skip
        new = set()
        for at, times in (*counts.lines.items(), *counts.branches.items()):
            if at[0] in _WHOLE and not any(at[1] in lines for lines in of_fiemap):
                continue
            self.there.add(at)
            if times and at not in self.reached:
                new.add(at)
        self.reached |= new
        return new

    def functions(self) -> Iterator[Function]:
        """Yield each function of which something is counted."""
        for name, (file, first, last) in sorted(self.places.items(), key=lambda item: item[1]):
            inside = {at for at in self.there if at[0] == file and first <= at[1] <= last}
            if not inside:
                continue
            lines, branches = ({at for at in inside if len(at) == size} for size in (2, 3))
            listed = self.listed.get((file, name, last - first + 1), {})
            reasons = {(file, first + line): reason for line, reason in listed.items()}
            never = dict(Counter(reasons[at] for at in reasons.keys() & lines - self.reached))
            left = sorted(at[1] for at in lines - self.reached - reasons.keys())
            ran = sorted(at[1] for at in self.reached & reasons.keys())
            yield Function(file, name, len(lines), len(lines & self.reached), len(branches),
                           len(branches & self.reached), never, left, ran)  # fmt: skip


def forget(kernel: Uml) -> None:
    """Let a kernel count from zero."""
    kernel.call(counted.forget)


def ran(kernel: Uml) -> gcov.Counts:
    """Return what ran since then."""
    kept = kernel.new_file()
    kernel.call(counted.keep, str(kept))
    return gcov.counts(kernel.binary, kept, FILES)


def corpus(folder: Path) -> list[tuple[str, Scenario]]:
    """Read a corpus: kinds and scenarios, each kind in turn; a crash is looked at and replayed.

    What differed in ``verify sequences`` or ``verify pairs`` is a log, or a send.
    """
    found: defaultdict[str, list[tuple[str, Scenario]]] = defaultdict(list)
    for path in sorted(folder.glob("*-*.json")):
        name, scenario = path.name.partition("-")[0], load_scenario(path)
        for kind in _AS.get(name, (name,)):
            found[kind].append((kind, scenario))
    return [one for turn in zip_longest(*found.values()) for one in turn if one]


def keep(folder: Path, kind: str, lines: list[Any]) -> None:
    """Add a scenario to a corpus."""
    text = ",\n".join(json.dumps(line) for line in lines)
    paths = (folder / f"{kind}-{number:04}.json" for number in count())
    path = next(path for path in paths if not path.exists())
    path.write_text(f'{{"hex_values": true, "ops": [\n{text}\n]}}\n')


def mutated(choice: random.Random, lines: list[Any], other: list[Any], name: str) -> Scenario:
    """Change operations after the mount: some go, come twice, come from another one, differ."""
    lines = [list(line) for line in lines]
    body, known = lines[2:], other[2:] or lines[2:]
    for _ in range(choice.choice([1, 1, 2, 4])):
        at, length = choice.randrange(len(body) + 1), choice.choice(_LENGTHS)
        match choice.randrange(5):
            case 0:
                del body[at : at + length]
            case 1:
                to = choice.randrange(len(body) + 1)
                body[to:to] = [list(line) for line in body[at : at + length]]
            case 2:
                start = choice.randrange(len(known))
                body[at:at] = [list(line) for line in known[start : start + length]]
            case _:
                if body:
                    _change(choice, body, choice.randrange(len(body)))
    end = [["crash"]] if ["crash"] in lines else []
    steps: list[Step] = []
    for line in [*lines[:2], *(one for one in body if one != ["crash"]), *end]:
        with suppress(ScenarioError):
            steps.append(parse_step(name, len(steps) + 1, line, hex_values=True))
    return Scenario(name, steps, hex_values=True)


def _change(choice: random.Random, body: list[Any], at: int) -> None:
    """Change an argument: a number a little or to an edge, a string to one of another operation."""
    line = body[at]
    places = [place for place, value in enumerate(line) if place and not isinstance(value, list)]
    if not places:
        return
    place = choice.choice(places)
    if isinstance(line[place], bool):
        line[place] = not line[place]
    elif isinstance(line[place], int):
        edges = [0, line[place] + 1, max(line[place] - 1, 0), line[place] ^ 4096, line[place] * 2]
        line[place] = choice.choice(edges)
    else:
        paths = [value for one in body for value in one[1:]
                 if isinstance(value, str) and not value.startswith("user.")]  # fmt: skip
        line[place] = choice.choice(paths or [line[place]])
