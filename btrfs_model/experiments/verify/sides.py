# SPDX-License-Identifier: GPL-2.0-only
"""The same scenario in a kernel and in the model.

Both begin with ``mkfs`` and ``mount``, make a commit, and end with one where there is no ``crash``,
which comes last. What fails on one side must fail on the other with the same errno.
"""

from __future__ import annotations

import errno
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from btrfs_model.backref.api import logical_ino
from btrfs_model.base.counters import Work
from btrfs_model.behaviour import Behaviour
from btrfs_model.experiments.scenario.load import Scenario
from btrfs_model.experiments.scenario.operations import Step
from btrfs_model.experiments.scenario.run import Runner
from btrfs_model.kernels.inside import operations
from btrfs_model.kernels.inside.mounts import Place
from btrfs_model.kernels.inside.timed import Sent
from btrfs_model.kernels.inside.traced import OneEvent
from btrfs_model.kernels.inside.traced import take as take_traced
from btrfs_model.kernels.session import Kernel
from btrfs_model.kernels.timings import make_filesystem
from btrfs_model.mount.log.trace import Event
from btrfs_model.mount.writable import WritableFilesystem
from btrfs_model.questions.send.ioctl import send
from btrfs_model.volume.filesystem import Filesystem
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    import pandas as pd

SIZE = 1 << 30
"""On a smaller device room for metadata may be short, and then more is written than is asked for.
"""
NO_FILE_DATA, COMPRESSED = 1, 16
"""Flags of a send."""
# An unmount may miss that the cleaner sleeps, until a commit wakes it: so not later than calls end.
_QUIET = "commit=300,nodiscard"
"""No commit comes between, no discard of what is free."""


@dataclass
class Ran:
    """How the operations after the mount ended (errno names), what each fsync came to.

    And what each file that was mapped said. Of the model also the work of all fsyncs, and whether a
    worker ran delayed items, which a kernel's does sooner or later by chance. Where it is traced,
    the events of each operation.
    """

    ended: list[str] = field(default_factory=list)
    synced: list[str] = field(default_factory=list)
    mapped: list[operations.Mapped] = field(default_factory=list)
    work: Counter[str] = field(default_factory=Counter, compare=False)
    by_chance: bool = field(default=False, compare=False)
    events: list[list[Event]] = field(default_factory=list)


def operations_of(scenario: Scenario) -> list[operations.OneStep]:
    """Return the operations after the mount as a kernel gets them."""
    found: list[operations.OneStep] = []
    for step in scenario.steps[2:]:
        arguments = dict(step.arguments)
        if step.name == "setxattr":
            text = arguments["value"]
            arguments["value"] = bytes.fromhex(text) if scenario.hex_values else text.encode()
        found.append((step.name, arguments))
    return found


def made_by_mkfs(scenario: Scenario, image: Path, size: int = SIZE) -> None:
    """Make the filesystem of a scenario with ``mkfs.btrfs``; it may say itself how large it is."""
    options = scenario.steps[0].arguments["options"]
    if "-b" in options:
        size = int(options[options.index("-b") + 1])
    make_filesystem(image, size, options)


def mount_options(scenario: Scenario) -> str:
    """Return the options of the mount of a scenario."""
    return f"{_QUIET},{scenario.steps[1].arguments['options']}"


def in_the_kernel(
    kernel: Kernel, scenario: Scenario, image: Path, crash: Path | None = None, size: int = SIZE,
    *, ticks: Sequence[int] | None = None, traces: Sequence[str] = (),
) -> Ran:  # fmt: skip
    """Carry a scenario out; `crash` becomes a copy of the device at its end, still mounted.

    `ticks`: see :func:`.operations.take`.
    `traces`: names of tracepoints that are listened to.
    """
    made_by_mkfs(scenario, image, size)
    with kernel.attached(image, read_only=False) as source:
        place = Place(source=source, top=kernel.top, options=mount_options(scenario))
        kernel.call(operations.begin, place)
        steps = [step for step in operations_of(scenario) if step[0] != "crash"]
        events: list[list[OneEvent]] = []
        if traces:
            taken, events = kernel.call(take_traced, steps, traces)
        else:
            taken = kernel.call(operations.take, steps, ticks)
        if crash is not None:
            subprocess.run(["cp", "--sparse=always", str(image), str(crash)], check=True)
        kernel.call(operations.end)
    return Ran(**taken, events=[[Event(*one) for one in some] for some in events])


class _Model(Runner):
    """The model, called as a kernel is."""

    def do_sync(self) -> None:
        self.fs().release(self.fs().hold(b""))  # a kernel is asked by an open file
        super().do_sync()

    def do_remount(self, options: str | None) -> None:
        for handle in list(self.open):
            self.do_close(handle)
        super().do_remount(options)


def _telling(model: _Model, ran: Ran) -> Callable[[Step], None]:
    """Carry out operations, with the events of each."""

    def carry_out(step: Step) -> None:
        with model.fs().trace() as trace:
            ran.events.append(trace.events)
            model.carry_out(step)

    return carry_out


def ended(carry_out: Callable[[Step], None], steps: Iterable[Step]) -> list[str]:
    """Carry out operations; how each ended: the name of its errno, or nothing."""
    found = []
    for step in steps:
        try:
            carry_out(step)
            found.append("")
        except OSError as error:
            found.append(errno.errorcode[error.errno or errno.EIO])
    return found


def references_to(forest: Forest, logical: int, ignore: bool) -> list[list[int]] | int:
    """Return who refers to a byte on disk, or the errno."""
    try:
        rows: list[list[int]] = logical_ino(forest, logical, ignore_offset=ignore).values.tolist()
    except OSError as error:
        return error.errno or 0
    return rows


@contextmanager
def in_the_model(
    scenario: Scenario, behaviour: str | Behaviour, crash: Path | None = None, size: int = SIZE,
    *, late_extents: bool = False, trace: bool = False,
) -> Iterator[tuple[WritableFilesystem, Ran]]:  # fmt: skip
    """Carry a scenario out as a kernel does; the filesystem, committed if it did not crash.

    `late_extents`: see :class:`.Machine`. `trace`: whether events are listened to.
    """
    model, ran = _Model(scenario, size, 0), Ran()
    model.asynchronous = True
    model.behaviour = Behaviour.parse(behaviour)

    def synced(step: Step, how: str, work: Work) -> None:
        ran.synced.append(how)
        ran.work.update(work)

    def mapped(extents: pd.DataFrame) -> None:
        rows = [(at, place, size, flags) for at, place, size, flags in extents.to_numpy().tolist()]
        forest = model.fs().running_forest()
        references = [references_to(forest, row[1], False) for row in rows if row[1]]
        ran.mapped.append(operations.Mapped(extents=rows, references=references))

    model.synced, model.mapped = synced, mapped
    try:
        for step in scenario.steps[:2]:
            model.carry_out(step)
        model.fs().sync()
        model.fs().machine.late_extents = late_extents
        carry_out = _telling(model, ran) if trace else model.carry_out
        ran.ended = ended(carry_out, (s for s in scenario.steps[2:] if s.name != "crash"))
        ran.by_chance = model.fs().machine.worked > 0
        if crash is not None:
            model.fs().save_crash(crash)
        else:
            for handle in list(model.open):
                model.do_close(handle)
            model.fs().sync()
        yield model.fs(), ran
    finally:
        model.close()


def model_stream(fs: Filesystem, what: Sent, behaviour: str) -> tuple[int, bytes]:
    """Send as a kernel is asked to; errno and stream."""
    try:
        sent = send(
            fs, what["snapshot"], what["parent"], what["clones"], behaviour=behaviour,
            proto=what["protocol"], no_file_data=bool(what["flags"] & NO_FILE_DATA),
            compressed=bool(what["flags"] & COMPRESSED),
        )  # fmt: skip
    except OSError as error:
        return error.errno or 0, getattr(error, "partial", b"")
    assert sent.data is not None
    return 0, sent.data
