# SPDX-License-Identifier: GPL-2.0-only
"""What tracepoints of btrfs tell of operations, in a buffer of its own that nobody else reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from btrfs_model.kernels.inside import operations
from btrfs_model.kernels.inside.mounts import run

_TRACING = Path("/sys/kernel/tracing")
_EVENTS = _TRACING / "events/btrfs"
_OURS = _TRACING / "instances/btrfs_model"
_KILOBYTES = 16384
_NEXT = "next operation"
_LINE = re.compile(r" [\d.]+: (?:(btrfs_\w+): )?(.*)$")
"""A line of the buffer; what is no event of btrfs is a mark, which has no fields."""
_FIELD = re.compile(r"(\w+)=(?:\S+ )?\((-?\d+)\)")
"""A field: in hexadecimal digits, then in decimal ones in parentheses; of one byte these alone."""
_HELD = re.compile(r"entries-in-buffer/entries-written: (\d+)/(\d+)")

OneEvent = tuple[str, dict[str, int]]
"""The name of a tracepoint, and its fields that are numbers."""


def missing(names: Sequence[str]) -> list[str]:
    """Return which of these tracepoints a kernel does not have."""
    _mount()
    return [name for name in names if not (_EVENTS / name).exists()]


def _mount() -> None:
    if _TRACING.exists() and not _EVENTS.exists():
        run("mount", "-t", "tracefs", "none", str(_TRACING))


def take(
    steps: Sequence[operations.OneStep], names: Sequence[str]
) -> tuple[operations.Taken, list[list[OneEvent]]]:
    """Carry out operations as :func:`.operations.take` does; what tracepoints tell of each."""
    with _tracing(names):
        with (_OURS / "trace_marker").open("w") as marker:

            def mark() -> None:
                marker.write(_NEXT)
                marker.flush()

            taken = operations.take(steps, each=mark)
        (_OURS / "tracing_on").write_text("0")
        return taken, _by_operation((_OURS / "trace").read_text())


@contextmanager
def _tracing(names: Sequence[str]) -> Iterator[None]:
    """Let the calls of this process be traced, by the fields and not by the words made of them."""
    _mount()
    if _OURS.exists():  # of one that was killed
        _OURS.rmdir()
    _OURS.mkdir()
    try:
        (_OURS / "buffer_size_kb").write_text(str(_KILOBYTES))
        (_OURS / "options/fields").write_text("1")
        (_OURS / "set_event_pid").write_text(str(os.getpid()))
        for name in names:
            (_OURS / f"events/btrfs/{name}/enable").write_text("1")
        yield
    finally:
        _OURS.rmdir()


def _by_operation(text: str) -> list[list[OneEvent]]:
    held = _HELD.search(text)
    if held is None or held[1] != held[2]:
        raise OSError(f"{_OURS}: events were lost: {held and held[0]}")
    found: list[list[OneEvent]] = []
    for line in text.splitlines():
        if match := _LINE.search(line):
            name, told = match.groups()
            if name is None:
                found.append([])
                continue
            fields = {key: int(value) for key, value in _FIELD.findall(told)}
            found[-1].append((name, fields))
    return found
