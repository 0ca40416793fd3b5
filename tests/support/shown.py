# SPDX-License-Identifier: GPL-2.0-only
"""Which small sequences show a toggle of the log: the model with and without it.

``python tests/support/shown.py LENGTH FIRST LAST`` goes through sequences of so many operations, in
an order by chance, and prints the first one that shows each toggle.
"""

import random
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from btrfs_model.base.errors import BehaviourWarning
from btrfs_model.experiments.small.sequences import Steps, enumerated, sampled
from btrfs_model.experiments.verify.logs import (
    clock_of_replays,
    items_of,
    logs_of,
    replayed,
    times_of,
)
from btrfs_model.experiments.verify.sequences import Batch, scenario_of
from btrfs_model.experiments.verify.sides import in_the_model
from btrfs_model.patches import Asked, Patch
from btrfs_model.volume.filesystem import Filesystem

KERNEL = "v7.2.7"
TOGGLES = [one for one in Patch if one.startswith("log-") and one.asked is not Asked.NOWHERE]
_SIZE = 2 << 30
_TOGETHER = 64


def sides(toggles: Sequence[Patch]) -> tuple[str, str]:
    """A kernel with toggles and without; what makes no sense without them is in neither."""
    above = {one for toggle in toggles for one in toggle.needed_by} - {*toggles}
    return _without(above), _without({*above, *toggles})


def _without(toggles: set[Patch]) -> str:
    return KERNEL + "".join(f" - {one}" for one in sorted(toggles))


def told(batch: Batch, behaviour: str) -> dict[str, list[Any]]:
    """What a kernel makes of sequences: how calls end, items of logs, and items after a replay."""
    scenario, _, whose = batch.ordered()
    found: dict[str, list[Any]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image"
        with in_the_model(scenario, behaviour, image, _SIZE) as (_, ran):
            outcomes = iter(ran.synced)
        steps = scenario.steps[2:-1]
        for (part, _), step, end in zip(whose, steps, ran.ended, strict=True):
            name = part.name if part else ""
            found[name].append(end)
            if step.name in ("fsync", "fdatasync") and not end:
                found[name].append(next(outcomes))
        with Filesystem.open(image) as fs:
            for root, items in logs_of(fs, times_of(behaviour)).items():
                found[fs.subvolume(root).path].append(items)
        with clock_of_replays():
            replay = replayed(image, behaviour)
        if isinstance(replay, int):
            found[""].append(replay)
            return found
        with replay, Filesystem.open(image) as fs:
            for root in replay.subvolume_ids:
                found[fs.subvolume(root).path].append(items_of(replay, root))
    return found


def showing(sequences: Sequence[Steps], toggles: Sequence[Patch]) -> list[Steps]:
    """The sequences that differ with toggles and without."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BehaviourWarning)
        behaviours = sides(toggles)
        batch = Batch.of(scenario_of("small", sequences))
        batch.plan(behaviours[0])
        before, after = (told(batch, one) for one in behaviours)
        names = sorted(one for one in before.keys() | after.keys() if one)
        return [sequences[int(one[1:])] for one in names if before[one] != after[one]]


def found(sequences: Sequence[Steps], left: Sequence[Patch]) -> Iterator[tuple[Patch, Steps]]:
    """The toggles that sequences show, each alone."""
    for toggle in left:
        for steps in showing(sequences, [toggle]):
            if showing([steps], [toggle]):
                yield toggle, steps
                break


def main() -> None:
    """Search."""
    length, first, last = map(int, sys.argv[1:])
    left = [*TOGGLES]
    if length < 3:
        everything = [*enumerated(length)[0]]
        random.Random(1).shuffle(everything)
        chosen = everything[first:last]
    else:
        chosen = [sampled(length, f"shown {number}") for number in range(first, last)]
    for at in range(0, len(chosen), _TOGETHER):
        for toggle, steps in found(chosen[at : at + _TOGETHER], left):
            print(toggle, steps, flush=True)
            left.remove(toggle)
    print(f"none of {len(chosen):,} shows", *left)


if __name__ == "__main__":
    main()
