# SPDX-License-Identifier: GPL-2.0-only
"""Calls on a mounted filesystem one after the other, each timed."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

from btrfs_model.kernels.inside.calls import KernelCalls
from btrfs_model.kernels.inside.clock import Clock, Run
from btrfs_model.kernels.inside.mounts import Place, mounted

_SUPER = 65536
_SUPER_SIZE = 4096
_GENERATION = 72
_LOG_ROOT = 96
_FSYNCS = {"fsync": os.fsync, "fdatasync": os.fdatasync}


def steps(place: Place, calls: list[list[Any]]) -> list[Run[str]]:
    """Make calls, names first, and time each; of an fsync say what it wrote: a log, a commit.

    In a guest the processor time is asked for fsyncs alone: there may be very many other calls.
    """
    taken = []
    with mounted(**place) as folder:
        device, kernel = device_of(folder), KernelCalls(folder)
        kernel.sync()
        for name, *arguments in calls:
            clock, wrote = Clock(), ""
            if name in _FSYNCS:
                before = written(device)
                fd = os.open(folder / arguments[0], os.O_RDONLY)
                with clock:
                    clock.start()
                    _FSYNCS[name](fd)
                    clock.stop()
                os.close(fd)
                after = written(device)
                wrote = "commit" if after[0] != before[0] else "log" if after != before else ""
            else:
                call = getattr(kernel, name)
                clock.start()
                call(*arguments)
                clock.stop()
            taken.append(clock.run(wrote))
    return taken


def device_of(folder: Path) -> str:
    """Return the block device that is mounted on a folder."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, source = line.partition(" - ")
        if fields.split()[4] == str(folder):
            return source.split()[1]
    raise OSError(f"{folder} is not mounted")


def written(device: str) -> tuple[int, int]:
    """Return generation and log root of the superblock."""
    with open(device, "rb", buffering=0) as file:  # noqa: PTH123
        block = os.pread(file.fileno(), _SUPER_SIZE, _SUPER)
    (generation,) = struct.unpack_from("<Q", block, _GENERATION)
    (log_root,) = struct.unpack_from("<Q", block, _LOG_ROOT)
    return generation, log_root
