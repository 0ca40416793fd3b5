# SPDX-License-Identifier: GPL-2.0-only
"""Microbenchmarks on a kernel, in turn, beside a reference that tells how fast the machine is.

The processor of a machine that is shared with others is faster at some moments than at others, by
half and more. So each run stands between two of the reference: its time is divided by how much
slower these were than the fastest tenth. Passes go through all microbenchmarks, each in another
order.

What a thread computes and how long it waits are measured apart. Processor time repeats within some
percent; how long another thread takes to wake up depends on the host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from btrfs_model.cost.caches import with_cache
from btrfs_model.cost.pipe import PIPE_WRITES, with_wakes
from btrfs_model.experiments.calibration.fit import Row
from btrfs_model.experiments.calibration.micro import REFERENCE
from btrfs_model.experiments.calibration.operations import Micro
from btrfs_model.experiments.calibration.processor import last_cache_mib
from btrfs_model.kernels.session import Kernel

Step = Callable[[str], None]
_QUIET = 0.1
"""Of the reference's runs this share is not slower than the machine is when nothing disturbs it."""


@dataclass(frozen=True)
class Measured:
    """What a kernel did with microbenchmarks.

    Attributes
    ----------
    rows : list of Row
        Work and times.
    reference : float
        Seconds that the reference computes when nothing disturbs it.
    spread : float
        How far apart the middle half of the reference's runs lies, of their median.
    passes : int
        How many there were.
    """

    rows: list[Row]
    reference: float
    spread: float
    passes: int


def measure(
    kernel: Kernel,
    micros: Sequence[Micro],
    seconds: float,
    least: int,
    step: Step,
    behaviour: str | None = None,
) -> Measured:
    """Count and time microbenchmarks.

    Parameters
    ----------
    kernel : Kernel
        Who is timed.
    micros : sequence of Micro
        Which ones; the reference is added. Those whose work is not paid for are left out.
    seconds : float
        Passes go on as long.
    least : int
        As many passes there are at least.
    step : callable
        Is told what is done next.
    behaviour : str, optional
        What the kernel does where it has a patch; the preset of its release where not given.
    """
    works: dict[str, Mapping[str, float]] = {}
    shm = "/dev/shm"  # a device of memory
    with TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as top:
        for number, micro in enumerate((REFERENCE, *micros)):
            step(f"making: {micro.name}")
            folder = Path(top) / str(number)
            folder.mkdir()
            micro.operation.prepare(folder)
            work = micro.operation.work(behaviour or kernel.preset)
            works[micro.name] = with_cache(work, last_cache_mib())
        telling = [micro for micro in micros if any(works[micro.name].values())]
        return _timed(kernel, telling, works, (seconds, least), step)


def _timed(
    kernel: Kernel,
    micros: Sequence[Micro],
    works: Mapping[str, Mapping[str, float]],
    limits: tuple[float, int],
    step: Step,
) -> Measured:
    chance = np.random.default_rng(0)
    taken: dict[str, list[tuple[float, float, float]]] = {micro.name: [] for micro in micros}
    references = [_fastest(REFERENCE, kernel)[0]]
    end, passes = time.monotonic() + limits[0], 0
    while passes < limits[1] or time.monotonic() < end:
        passes += 1
        for number in chance.permutation(len(micros)):
            micro = micros[number]
            step(f"pass {passes}: {micro.name}")
            computed, waited = _fastest(micro, kernel)
            references.append(_fastest(REFERENCE, kernel)[0])
            beside = float(np.sqrt(references[-1] * references[-2]))
            taken[micro.name].append((computed, waited, beside))
    usual = float(np.quantile(references, _QUIET))
    rows = [_row(name, works[name], runs, usual) for name, runs in taken.items()]
    # as all others: beside the run before and the run after
    beside = np.sqrt(np.array(references[:-2]) * np.array(references[2:]))
    own = np.array(references[1:-1]) / beside * usual
    rows.append(Row(REFERENCE.name, works[REFERENCE.name], tuple(own.tolist())))
    low, middle, high = np.quantile(references, [0.25, 0.5, 0.75])
    return Measured(rows, usual, float((high - low) / middle), passes)


def _row(
    name: str, work: Mapping[str, float], runs: Sequence[tuple[float, float, float]], usual: float
) -> Row:
    """Bring runs to the speed of a machine that nothing disturbs.

    Where commands went through a pipe, that time says how often its reader was woken.
    """
    row = Row(
        name,
        work,
        tuple(computed / beside * usual for computed, _, beside in runs),
        tuple(waited / beside * usual for _, waited, beside in runs),
    )
    return replace(row, work=with_wakes(work, row.took)) if work.get(PIPE_WRITES) else row


def _fastest(micro: Micro, kernel: Kernel) -> tuple[float, float]:
    """Return the seconds of the fastest of its runs: of the processor, and waiting."""
    timing = micro.operation.time(kernel, micro.runs)
    wall, computed = min(zip(timing.wall_ms, timing.cpu_ms, strict=True))
    computed = min(computed, wall)  # a guest's kernel may compute with two threads at once
    return computed / 1e3, (wall - computed) / 1e3
