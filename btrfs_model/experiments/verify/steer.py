# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios steered by what a kernel runs: those are kept that reach what none reached before.

A corpus is a folder of scenarios, each named by its kind, ``KIND-NUMBER.json``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from btrfs_model.experiments.scenario.load import Scenario, load_scenario
from btrfs_model.experiments.scenario.operations import ScenarioError, Step, parse_step
from btrfs_model.kernels import gcov
from btrfs_model.kernels.inside import counted
from btrfs_model.kernels.uml import Uml

FILES = ("send.c", "tree-log.c", "backref.c", "ctree.c", "extent_io.c")
"""Files of ``fs/btrfs`` whose lines steer."""
_WHOLE = {"extent_io.c": "fiemap"}
"""Of this file only functions with this in their name."""
_LENGTHS = (1, 1, 2, 3, 8, 20)

Place = tuple[Any, ...]


@dataclass
class Reach:
    """What ran so far: lines and branches of :data:`FILES`, and how many there are."""

    reached: set[Place] = field(default_factory=set)
    there: set[Place] = field(default_factory=set)
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    def add(self, counts: gcov.Counts) -> set[Place]:
        """Add counts; what is new."""
        self.places.update(counts.places)
        of_fiemap = [
            range(first, last + 1) for name, (file, first, last) in counts.places.items()
            if file in _WHOLE and _WHOLE[file] in name
        ]  # fmt: skip
        new = set()
        for at, count in (*counts.lines.items(), *counts.branches.items()):
            if at[0] in _WHOLE and not any(at[1] in lines for lines in of_fiemap):
                continue
            self.there.add(at)
            if count and at not in self.reached:
                new.add(at)
        self.reached |= new
        return new

    def functions(self) -> Iterator[tuple[str, str, int, int, int, int]]:
        """Yield file and function, its lines, those that ran, its branches, those taken."""
        for name, (file, first, last) in sorted(self.places.items(), key=lambda item: item[1]):
            inside = [at for at in self.there if at[0] == file and first <= at[1] <= last]
            if not inside:
                continue
            kinds = [[at for at in inside if len(at) == size] for size in (2, 3)]
            counts = [len(part) for kind in kinds for part in (kind, self.reached & {*kind})]
            yield file, name, counts[0], counts[1], counts[2], counts[3]


def forget(kernel: Uml) -> None:
    """Let a kernel count from zero."""
    kernel.call(counted.forget)


def ran(kernel: Uml) -> gcov.Counts:
    """Return what ran since then."""
    kept = kernel.new_file()
    kernel.call(counted.keep, str(kept))
    return gcov.counts(kernel.binary, kept, FILES)


def corpus(folder: Path) -> list[tuple[str, Scenario]]:
    """Read the scenarios of a corpus, each with its kind."""
    return [(path.name.partition("-")[0], load_scenario(path))
            for path in sorted(folder.glob("*-*.json"))]  # fmt: skip


def keep(folder: Path, kind: str, lines: list[Any]) -> None:
    """Add a scenario to a corpus."""
    number = len(list(folder.glob(f"{kind}-*.json")))
    text = ",\n".join(json.dumps(line) for line in lines)
    path = folder / f"{kind}-{number:04}.json"
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
