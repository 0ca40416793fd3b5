# SPDX-License-Identifier: GPL-2.0-only
"""Sends between all pairs of small trees that differ by one and by two operations.

A case has an operation, and after it each one that then goes well. Sent is, in both directions, the
change of the first, of the second, and of both at once; and the whole tree.
"""

from __future__ import annotations

import random
from pathlib import Path

from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.small.sequences import SmallTree
from btrfs_model.experiments.small.vocabulary import ALL, TREE, Operation
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.sequences import below
from btrfs_model.experiments.verify.sides import in_the_kernel, model_stream
from btrfs_model.kernels.inside import asked
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.volume.filesystem import Filesystem

_SIZE = 1 << 30
_BASE, _FIRST = "s0", "s1"
"""Snapshots: of the tree that all start from, and after the first operation."""


def firsts() -> list[Operation]:
    """Return the operations that go well alone: a case has one of them."""
    return [operation for operation in ALL if SmallTree().carry_out(operation)]


def seconds(first: Operation) -> list[Operation]:
    """Return the operations that go well after one."""
    tree = SmallTree()
    tree.carry_out(first)
    return [operation for operation in ALL if tree.copy().carry_out(operation)]


def scenario_of_pairs(seed: str) -> Scenario:
    """Make the scenario of a case by its number, or by any seed."""
    last = seed.split()[-1]
    known = firsts()
    number = int(last) if last.isdigit() else random.Random(seed).randrange(len(known))
    first = known[number % len(known)]
    lines: list[Operation] = [["mkfs", []], ["mount", "noatime"], ["subvol_create", "base"]]
    lines += [below("base", operation) for operation in TREE]
    lines += [["snapshot", "base", _BASE, True], ["snapshot", "base", "w"], below("w", first),
              ["snapshot", "w", _FIRST, True]]  # fmt: skip
    for number, second in enumerate(seconds(first), 2):
        lines += [["snapshot", _FIRST, f"w{number}"], below(f"w{number}", second),
                  ["snapshot", f"w{number}", f"s{number}", True]]  # fmt: skip
    steps = [parse_step(seed, number, line, hex_values=True)
             for number, line in enumerate(lines, 1)]  # fmt: skip
    return Scenario(seed, steps, hex_values=True)


def _plans(names: list[str]) -> list[Sent]:
    known = [(_FIRST, _BASE), (_BASE, _FIRST)]
    for name in names:
        if name not in (_BASE, _FIRST):
            known += [(name, _BASE), (_BASE, name), (name, _FIRST), (_FIRST, name)]
    found = [(new, old) for new, old in known if new in names and old in names]
    whole: list[tuple[str, str | None]] = [(name, None) for name in names]
    return [Sent(snapshot=new, parent=old, clones=[old] if old else [], flags=0, protocol=1)
            for new, old in (*whole, *found)]  # fmt: skip


def compare_pairs(bench: Bench, scenario: Scenario) -> None:
    """Compare streams, byte for byte; the first that differs is told with the trees it is of."""
    with bench.new_image() as image:
        in_the_kernel(bench.kernel, scenario, image, size=_SIZE)
        with Filesystem.open(image) as fs:
            names = [fs.subvolume(number).path for number in fs.subvolume_ids
                     if fs.subvolume(number).is_read_only]  # fmt: skip
            plans = _plans(names)
            targets = [bench.kernel.new_file() for _ in plans]
            with bench.looked_at(image) as place:
                ended = bench.kernel.call(asked.streams, place, plans, list(map(str, targets)))
            answers = zip(plans, ended, targets, strict=True)
            found = [(one[0], _differs(bench, fs, *one)) for one in answers]
    bench.compared["pairs"] += len(names) - 1
    differing = [(what, error) for what, error in found if error]
    bench.compared["differ"] += len(differing)
    for what, error in differing:
        error.scenario = _alone(scenario, what)
        raise error


def _differs(
    bench: Bench, fs: Filesystem, what: Sent, number: int, target: Path
) -> DifferenceError | None:
    theirs = number, target.read_bytes()
    target.unlink()
    ours = model_stream(fs, what, bench.behaviour)
    try:
        told = f"send of {what['snapshot']} after {what['parent']}"
        bench.same("streams", told, theirs, ours, how=(theirs[0], ours[0]))
    except DifferenceError as error:
        return error
    bench.compared["bytes"] += len(theirs[1])
    return None


def _alone(scenario: Scenario, what: Sent) -> Scenario:
    """Return what makes the two trees of a send alone."""
    numbers = {(name or _BASE)[1:] for name in (what["snapshot"], what["parent"])}
    others = {f"{kind}{number}".encode() for number in range(2, len(ALL) + 2)
              for kind in "ws" if str(number) not in numbers}  # fmt: skip
    steps = [
        step for step in scenario.steps
        if not others & {value.partition(b"/")[0] for value in step.arguments.values()
                         if isinstance(value, bytes)}
    ]  # fmt: skip
    return Scenario(scenario.path, steps, hex_values=True)
