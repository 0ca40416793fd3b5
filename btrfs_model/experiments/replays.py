# SPDX-License-Identifier: GPL-2.0-only
"""Replays of several workloads: one after the other, or side by side in processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pandas as pd

from btrfs_model.base.arguments import checked, renamed
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.whole_file import check_folder
from btrfs_model.cost.machine import chosen
from btrfs_model.experiments.replay import Replay, message_of, run
from btrfs_model.experiments.results import frame
from btrfs_model.experiments.sweep import engine
from btrfs_model.experiments.sweep.engine import WorkerDiedError, Workers, tell
from btrfs_model.experiments.times import read_measured
from btrfs_model.experiments.workloads import NAMES, Workload, load
from btrfs_model.experiments.workloads.knobs import Knobs
from btrfs_model.experiments.workloads.room import available, check_room
from btrfs_model.limits import Limits

_MEMORY: Final = 4 << 30
"""Bytes that a workload takes at its full scale, at most."""

_LONG: Final = ("send-utimes", "send-readahead", "log-dir")
"""Workloads that take long at their full scale, the longest first."""


def _run(name: str, settings: dict[str, Any]) -> Replay:
    from btrfs_model.experiments.report import drawn

    one = run(name, step=lambda text: tell(f"{name}: {text}"), **settings)
    drawn(one)
    return one


def default_jobs() -> int:
    """Return how many workloads this machine has processors and free memory for, at least 1."""
    return max(1, min(engine.default_jobs(), available() // _MEMORY))


def run_all(
    names: Sequence[str], jobs: int, step: Callable[[str], None], **settings: Any
) -> list[Replay]:
    """Replay workloads, so many at a time.

    Parameters
    ----------
    names : sequence of str
        Which ones.
    jobs : int
        How many processes; with 1 there is none but this.
    step : callable
        Told when a part of the work begins, from a thread where there are processes.
    **settings
        As for :func:`btrfs_model.experiments.replay.run`.

    Raises
    ------
    BtrfsModelError
        What a replay raises; or when a process was killed, as happens without memory.
    """
    if min(jobs, len(names)) < 2:
        return [
            run(name, step=lambda text, name=name: step(f"{name}: {text}"), **settings)  # type: ignore[misc]
            for name in names
        ]
    order = sorted(names, key=lambda name: (*_LONG, name).index(name))
    with Workers(min(jobs, len(names)), step) as pool:
        waiting = {name: pool.submit(_run, name, settings) for name in order}
        try:
            return [waiting[name].result() for name in names]
        except WorkerDiedError:
            raise BtrfsModelError(
                "replay: a process of a workload was killed; with --jobs 1 less memory is needed"
            ) from None


def check(
    names: Iterable[str | Workload],
    scale: str | float,
    knobs: Knobs,
    machine: str | None,
    out: str | os.PathLike[str] | None,
) -> None:
    """Find out what is wrong before the first workload takes its time; make the folder.

    Raises
    ------
    BtrfsModelError
        For a workload, scale, knob or machine that there is not, or where memory is short.
    OSError
        When nothing can be written to the folder.
    """
    for name in names:
        workload = load(name)
        check_room(workload, workload.input(scale, knobs))
        message_of(workload)
    chosen(machine)
    if out is not None:
        check_folder(out)


def all_names(knobs: Iterable[str] = ()) -> tuple[str, ...]:
    """Names of the workloads that have these knobs."""
    return tuple(name for name in NAMES if set(knobs) <= set(load(name).knobs))


@renamed(kernel_before="behaviour_before", kernel_after="behaviour_after")
@checked
def replay(
    workload: str | Workload | Sequence[str | Workload] | None = None,
    scale: str | float = "full",
    *,
    behaviour_before: str | None = None,
    behaviour_after: str | None = None,
    device: str | None = None,
    parameters: Mapping[str, object] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
    nodesize: int | None = None,
    machine: str | None = None,
    measured: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """Replay workloads of commit messages on both sides of their commit.

    Parameters
    ----------
    workload : str, Workload or sequence of those, optional
        Names, e.g. ``"send-truncate"``, or workloads of your own (``bm.workload()``); without it
        all that the package has, or all that have the knobs.
    scale : str or float
        ``"full"`` as in the commit message, ``"quick"``, or a fraction of full.
    behaviour_before, behaviour_after : str, optional
        Behaviours to compare instead of the ones just before and after the commit, e.g.
        ``"v6.12 - send-utimes-cache"``.
    device : str, optional
        Model times on this device instead of those that the workload names: a name of
        :func:`btrfs_model.cost.device.names` or the path of a file.
    parameters : mapping, optional
        Parameters of that device other than its file's, e.g. ``{"queue_depth": 1}``.
    limits : Limits or mapping of str to int, optional
        Limits of the kernel, arguments of :class:`btrfs_model.limits.Limits`, e.g.
        ``{"dir_utimes_cache": 4}``.
    nodesize : int, optional
        Build the filesystem with tree blocks of so many bytes.
    machine : str, optional
        Predict times on this machine: a name of :func:`btrfs_model.cost.machine.names` or the path
        of a file; without it on the native one.
    measured : path, optional
        Times of this machine's kernels, which ``btrfs-model verify time`` wrote, in place of those
        that come with the package.
    out : path, optional
        Folder that gets results.csv, results.parquet, speedups.csv, messages.csv, report.html,
        the charts and provenance.json.

    Returns
    -------
    pandas.DataFrame
        A row per figure: workload, a column for each parameter that it depends on, side, behaviour,
        quantity, unit, reported (by the commit message), modelled, low and high (the 90 % interval
        of a time), measured (on a real kernel; the median, and measured_min, measured_max, runs),
        error (of modelled against measured, or
        reported where nothing was measured; a fraction). What is not known is missing.
        ``docs/results.md`` says what each column holds.

    Raises
    ------
    BtrfsModelError
        For an unknown workload, behaviour or device, a scale that there is no image of, a file of
        times that is none, or a knob (`device` to `nodesize`) that a workload that is named does
        not have.
    """
    given = limits.given() if isinstance(limits, Limits) else limits
    knobs = Knobs(device, parameters or {}, given or {}, nodesize)
    names = (
        (workload,) if isinstance(workload, str | Workload) else workload or all_names(knobs.turned)
    )
    names = tuple(dict.fromkeys(names))
    check(names, scale, knobs, machine, out)
    times = None if measured is None else read_measured(measured)
    replays = [
        run(
            one, scale, behaviour_before=behaviour_before, behaviour_after=behaviour_after,
            knobs=knobs, machine=machine, measured=times,
        )
        for one in names
    ]  # fmt: skip
    if out is not None:
        from btrfs_model.experiments.report import write

        write(replays, out)
    return frame(replays)
