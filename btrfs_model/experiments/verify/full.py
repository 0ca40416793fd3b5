# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems that fill up: what is made, how much goes in before a kernel refuses."""

from __future__ import annotations

import random
import stat
from collections import Counter
from typing import Any, Final

from btrfs_model.behaviour import Behaviour, version
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import parse_step
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.sides import in_the_kernel, in_the_model
from btrfs_model.patches import Patch
from btrfs_model.volume.filesystem import Filesystem

_MIB: Final = 1 << 20
_ALL: Final = 1_000_000
"""More files than there is room for."""
_NAMES: Final = (180, 240)
"""How long names are: names in their thousands fill what is left."""
_FIRST, _BEHIND = (6, 12), (7, 1)
"""Kernels before and after these count on other parts of what no chunk has."""
_RUNS: Final = 3
"""A kernel fills a filesystem up to so often: when its threads come to their work is chance."""
_SLACK: Final = 0.04
"""What the model may hold more or less than every run of the kernel, as a share of all."""
_BLOCK: Final = 4096
_AT_ONCE: Final = 512
"""Pages for which a kernel without ``write-by-page`` reserves together, at most.

It does so for as many as the process may make dirty before it has to wait. So where a write is cut
off is chance, and what the large file did not get has room for small ones."""


def random_full(seed: str) -> Scenario:
    """Make a scenario of a small device that is filled, emptied in part and filled again."""
    choice = random.Random(seed)
    one = choice.choice
    size = choice.randint(115, one([160, 160, 300])) * _MIB
    operations: list[list[Any]] = [
        ["mkfs", ["-b", str(size), "-n", one(["4096", "16384", "16384", "65536"]),
                  "-m", one(["dup", "single"])]],
        ["mount", one(["noatime", "noatime", "noatime", "noatime,max_inline=0"])],
        ["mkdir", "a"], ["mkdir", "b"], ["mkdir", "c"],
    ]  # fmt: skip
    # until no data fits, or half of what does: then many names and inline data have to come
    length = choice.randint(_MIB, 8 * _MIB)
    most, inline = one([(_ALL, 0), (size // length // 2, one([0, 1000, 2000]))])
    operations.append(["fillfiles", "a", "data", 0, most, length, ["zero"]])
    operations += one([[], [["sync"]]])
    names = ["x" * choice.randint(*_NAMES), inline]
    operations += [["fillfiles", "b", names[0], 0, _ALL, names[1], ["pat", seed]], ["sync"]]
    gone = choice.randint(100, 1000)
    operations += [["rmfiles", "b", names[0], 0, gone, 1], ["sync"],
                   ["fillfiles", "c", names[0], 0, _ALL, names[1], ["pat", seed]]]  # fmt: skip
    steps = [parse_step(f"seed {seed}", number, line) for number, line in enumerate(operations, 1)]
    return Scenario(f"seed {seed}", steps, hex_values=True)


def is_comparable(release: str) -> bool:
    """Whether a kernel counts room for metadata as the model does."""
    return _FIRST <= version(release) < _BEHIND


def _held(fs: Filesystem, inline: bool) -> Counter[str]:
    """Count the bytes of large files, the others in each directory, and the blocks of all.

    Blocks are counted where no file is inline.
    """
    found: Counter[str] = Counter()
    for row in fs.listing(fs.subvolume_ids[0], content=False).to_dict("records"):
        above = row["path"].rpartition("/")[0]
        if not stat.S_ISREG(row["mode"]):
            continue
        if above == "a":
            found["bytes"] += row["size"]
        else:
            found[f"files of {above}"] += 1
        if not inline:
            found["blocks"] += -(-row["size"] // _BLOCK)
    return found


def compare_full(bench: Bench, scenario: Scenario) -> None:
    """Compare how each call ends, and how much goes in.

    A kernel does it again where its first runs are not enough to hold the model's between them. Of
    one that counts otherwise it is only how the last call ends.
    """
    runs: list[tuple[list[str], Counter[str]]] = []
    inline = "max_inline=0" not in str(scenario.steps[1].arguments)
    with in_the_model(scenario, bench.behaviour) as (fs, ran):
        ours = ran.ended, _held(fs, inline)
    while True:
        with bench.new_image() as image:
            ended = in_the_kernel(bench.kernel, scenario, image).ended
            with Filesystem.open(image) as theirs:
                runs.append((ended, _held(theirs, inline)))
        try:
            return _compare(bench, scenario, runs, *ours)
        except DifferenceError:
            if len(runs) == _RUNS:
                raise


def _compare(
    bench: Bench,
    scenario: Scenario,
    runs: list[tuple[list[str], Counter[str]]],
    ended: list[str],
    held: Counter[str],
) -> None:
    if not is_comparable(bench.kernel.release):
        return bench.same("calls", "how the last call ended", runs[-1][0][-1:], ended[-1:])
    for step, mine, *its in zip(scenario.steps[2:], ended, *(run[0] for run in runs), strict=True):
        kernel = mine if mine in its else its[-1]
        bench.same("calls", f"how this ended: {step.number} {step}", kernel, mine,
                   how=(step.name, kernel, mine))  # fmt: skip
    for what in sorted(set(held).union(*(run[1] for run in runs))):
        told = sorted(run[1][what] for run in runs)
        # the second time there is room for few: what is aside is a share of all
        unit = what.split()[0]
        aside = _SLACK * max(
            sum(number for name, number in run[1].items() if name.split()[0] == unit)
            for run in runs
        )
        if Patch.WRITE_BY_PAGE not in Behaviour.parse(bench.behaviour) and what != "blocks":
            aside = max(aside, _AT_ONCE * (_BLOCK if unit == "bytes" else 1))
        if not told[0] - aside <= held[what] <= told[-1] + aside:
            raise DifferenceError(what, told, held[what], ("amounts", what))
        bench.compared[f"{unit} that fitted"] += held[what]
