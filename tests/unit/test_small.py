# SPDX-License-Identifier: GPL-2.0-only
"""All small sequences: what is left out, and how many are put into one filesystem."""

from types import SimpleNamespace

import pytest

from btrfs_model.base.errors import KernelHungError
from btrfs_model.experiments.small.sequences import LEFT_OUT, SmallTree, enumerated, sampled
from btrfs_model.experiments.small.vocabulary import ALL
from btrfs_model.experiments.verify import sequences
from btrfs_model.experiments.verify.bench import Bench, DifferenceError
from btrfs_model.experiments.verify.pairs import firsts, scenario_of_pairs, seconds
from btrfs_model.experiments.verify.sequences import (
    TOGETHER,
    Batch,
    cases,
    scenario_of,
    sequences_of,
)
from btrfs_model.experiments.verify.sides import in_the_model


def test_all_operations_are_there_in_sequences_of_one_and_of_two() -> None:
    """Without a point between all pairs of what goes well alone and what does then."""
    single, double = enumerated(1)[0], enumerated(2)[0]
    assert [one for one in ALL if any(steps[0] == one for steps in single)] == ALL
    pairs = {(repr(first), repr(second[0])) for first, *second in double if second[0] in ALL}
    assert pairs == {(repr(one), repr(other)) for one in firsts() for other in ALL}
    assert len({repr(steps) for steps in single + double}) == len(single + double)


def test_what_is_left_out_is_counted() -> None:
    """Of one operation each point is there, of two those that can have something to do."""
    assert enumerated(1)[1] == {LEFT_OUT[0]: 150}
    points = {repr(steps[-1]) for steps in enumerated(2)[0] if len(steps) > 2}
    assert not any("fdatasync" in point for point in points)
    assert {*enumerated(2)[1]} == {*LEFT_OUT}


def test_cases_have_all_sequences_then_sampled_ones() -> None:
    whole = [steps for case in range(sum(cases())) for steps in sequences_of(case)]
    assert whole == enumerated(1)[0] + enumerated(2)[0]
    further = sequences_of(sum(cases()))
    assert len(further) == TOGETHER
    assert further[0] == sampled(3, "0 0") != further[1]
    assert {sum(step in ALL for step in steps) for steps in further} <= {2, 3}


def test_operations_end_as_the_names_say() -> None:
    """What is left out after an operation that fails does fail; and what is not touched is clean.

    Of each operation alone, and of a part of what follows another one.
    """
    some = [[operation] for operation in ALL]
    some += [[*steps[:2]] for steps in enumerated(2)[0] if steps[1] in ALL][::997]
    scenario = scenario_of("small", some)
    with in_the_model(scenario, "v6.18.44") as (_, ran):
        ends = iter(ran.ended[-sum(map(len, some)) :])
    for steps in some:
        tree = SmallTree()
        for step in steps:
            end = next(ends)
            # of a clone and of what is compared before it is shared, sizes decide too
            sizes = step[0].startswith(("clone", "dedupe")) and end == "EINVAL"
            assert tree.carry_out(step) == (not end) or sizes, (steps, end)


def test_an_fsync_of_what_is_not_touched_does_nothing() -> None:
    """So it is left out between and after more than one operation."""
    some = []
    for operation, *point in enumerated(1)[0][::25]:
        tree = SmallTree()
        tree.carry_out(operation)
        if point and not tree.is_touched(point[0]):
            some.append([operation, *point])
    with in_the_model(scenario_of("small", some), "v6.18.44") as (_, ran):
        assert ran.synced == ["none"] * len(some)


def test_a_batch_has_each_step_once_and_in_order() -> None:
    """What comes to a commit stands before what waits in a log."""
    moved = [steps for steps in enumerated(2)[0] if steps[0] == ["rename", "A/foo", "B/new"]]
    batch = Batch.of(scenario_of("small", moved[::60]))
    batch.plan("v6.18.44")
    scenario, ticks, whose = batch.ordered()
    for part in batch.parts:
        steps = zip(scenario.steps[2:-1], whose, strict=True)
        mine = [step for step, (one, _) in steps if one is part]
        assert [step for step in mine if step.name != "sync"] == [
            step for step in part.steps if step.name != "sync"
        ]
        alone = Batch.of(batch.part([part]))
        assert [one.steps for one in alone.parts] == [part.steps]
    assert 0 < len(ticks) < len(whose)
    with in_the_model(scenario, "v6.18.44") as (_, ran):
        last = len(ran.synced) - 1 - ran.synced[::-1].index("commit")
        assert "log" in ran.synced[last:]


def test_what_differs_alone_is_told_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three differs each time, one by chance; the scenario of the first is told."""
    some = [[["create", "A/new"], ["fsync", name]] for name in ("A/new", "A", "B")]
    asked: list[int] = []

    def differing(bench: Bench, batch: Batch) -> dict[str, DifferenceError]:
        asked.append(len(batch.parts))
        bench.compared["sequences"] += 1
        names = {"s1", "s2"} if len(asked) == 1 else {"s1"}
        there = names & {part.name for part in batch.parts}
        return {name: DifferenceError(name, 1, 2) for name in there}

    monkeypatch.setattr(sequences, "_differing", differing)
    bench = Bench(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(DifferenceError) as found:
        sequences.compare_sequences(bench, scenario_of("small", some))
    # one alone is asked for once with its half, then as often as it takes
    assert asked == [3, 1, 1, 1, 1, 1]
    assert bench.compared == {"sequences": 1, "differ": 1, "differ by chance": 1}
    assert found.value.scenario is not None
    assert [str(step) for step in found.value.scenario.steps[-3:-1]] == [
        "create s1/A/new 420", "fsync s1/A",
    ]  # fmt: skip


def test_what_makes_a_mount_fail_is_alone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel dies of one sequence, and where two are together of these; the rest is compared."""
    some = [[["create", "A/new"], ["fsync", "A"]] for _ in range(4)]

    def together(bench: Bench, batch: Batch) -> dict[str, DifferenceError]:
        names = {part.name for part in batch.parts}
        if "s3" in names or {"s0", "s1"} <= names:
            raise KernelHungError("kernel 7.2 died")
        bench.compared["sequences"] += len(names)
        return {}

    monkeypatch.setattr(sequences, "_differing_together", together)
    bench = Bench(SimpleNamespace())  # type: ignore[arg-type]
    found = sequences._differing(bench, Batch.of(scenario_of("small", some)))
    assert bench.compared["sequences"] == 3
    assert {name: len(Batch.of(error.scenario).parts) for name, error in found.items()
            if error.scenario} == {"s0": 2, "s3": 1}  # fmt: skip


def test_a_case_of_pairs_has_what_goes_well_after_an_operation() -> None:
    scenario = scenario_of_pairs("pairs 0")
    snapshots = [step for step in scenario.steps if step.name == "snapshot"]
    assert len(snapshots) == 3 + 2 * len(seconds(firsts()[0]))
    with in_the_model(scenario, "v6.18.44") as (_, ran):
        assert {*ran.ended} <= {"", "EINVAL"}
