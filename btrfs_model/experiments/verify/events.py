# SPDX-License-Identifier: GPL-2.0-only
"""What an fsync, a rename, a link and an unlink decide: a kernel's tracepoints beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from btrfs_model.base.errors import KernelMissingError
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.verify.bench import Bench
from btrfs_model.experiments.verify.sides import Ran, in_the_kernel, in_the_model
from btrfs_model.kernels.inside import traced
from btrfs_model.kernels.session import Kernel
from btrfs_model.mount.log.trace import EVENTS, Event

_COMPARED = ("fsync", "fdatasync", "fsyncfd", "rename", "exchange", "link", "unlink")
_SIZE = 8 << 30
"""Bytes of a device. On one of a gigabyte an exchange makes 7.2 run what is delayed, for room."""
_COMMIT = "btrfs_transaction_commit"
_TRANSACTIONS = ("generation", "logged_trans", "last_unlink_trans", "last_reflink_trans")
"""Fields that are transactions: of these it matters whether it is the running one."""


def check_traces(kernel: Kernel) -> None:
    """Refuse a kernel that has not all tracepoints of a log.

    Raises
    ------
    KernelMissingError
        With what to build.
    """
    if missing := kernel.call(traced.missing, list(EVENTS)):
        raise KernelMissingError(
            f"Linux {kernel.release} has no tracepoint {missing[0]}: they came with 7.2 "
            "(btrfs-model kernel build linux-source-7.2 -o traced)"
        )


def compare_events(bench: Bench, scenario: Scenario) -> None:
    """Compare the events of each operation that has to do with logs, one by one."""
    with bench.new_image() as image:
        theirs = in_the_kernel(bench.kernel, scenario, image, size=_SIZE, traces=EVENTS)
    ours = _in_the_model(bench, scenario)
    if ours.synced != theirs.synced:  # as in compare_logs()
        late = _in_the_model(bench, scenario, late_extents=True)
        ours = late if late.synced == theirs.synced else ours
    bench.same_ends(scenario, theirs.ended, ours.ended)
    for step, its, mine in zip(scenario.steps[2:], theirs.events, ours.events, strict=False):
        if step.name not in _COMPARED:
            continue
        for number, (one, other) in enumerate(zip_longest(*map(_comparable, (its, mine)))):
            what = f"event {number} of this: {step.number} {step}"
            if one and other and one.name == other.name:
                one = Event(one.name, {key: one.fields.get(key, -1) for key in other.fields})
            bench.same("events", what, one, other, how=_how(one, other))
        bench.compared["calls traced"] += 1


def _in_the_model(bench: Bench, scenario: Scenario, *, late_extents: bool = False) -> Ran:
    behaviour = bench.behaviour
    with in_the_model(scenario, behaviour, size=_SIZE, late_extents=late_extents,
                      trace=True) as (_, ran):  # fmt: skip
        return ran


def _comparable(events: Sequence[Event]) -> list[Event]:
    """Return events whose transactions are told as running or not, and one for each commit."""
    found: list[Event] = []
    running = 0
    for name, fields in events:
        if name == _COMMIT and found and found[-1].name == _COMMIT:
            continue  # of each of its states there is one
        running = fields.get("transid", running)
        known = {key: value for key, value in fields.items() if key != "transid"}
        for key in known.keys() & set(_TRANSACTIONS):
            known[key] = int(known[key] >= running)
        found.append(Event(name, known))
    return found


def _how(one: Event | None, other: Event | None) -> tuple[str, ...]:
    """Return which events differ, and where it is the same one the first field that does."""
    if one is None or other is None or one.name != other.name:
        return (one.name if one else "", other.name if other else "")
    differ = (key for key, value in one.fields.items() if other.fields[key] != value)
    return one.name, next(differ, "")
