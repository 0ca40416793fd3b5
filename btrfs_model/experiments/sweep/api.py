# SPDX-License-Identifier: GPL-2.0-only
"""A sweep from its knobs to one table."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa

from btrfs_model.base.arguments import checked
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.experiments.sweep.driver import Driver, Report, engine, measure
from btrfs_model.experiments.sweep.engine import default_jobs
from btrfs_model.experiments.sweep.plan import Plan, plan
from btrfs_model.experiments.sweep.store import Store, coded
from btrfs_model.experiments.sweep.target import Target, target_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TIMEOUT: Final = 3600.0
_SHOWN: Final = 12
"""So many names an error lists."""
_PROBES: Final = 5
"""Cells that a dry run measures where nothing tells what one takes."""


class IncompleteSweepError(BtrfsModelError):
    """A sweep of which cells are missing or failed.

    Attributes
    ----------
    table : pandas.DataFrame
        What there is.
    """

    def __init__(self, text: str, table: pd.DataFrame) -> None:
        super().__init__(text)
        self.table = table


@dataclass(slots=True)
class Settings:
    """How a sweep is done; see :func:`sweep`, which has these as its arguments."""

    store: str | os.PathLike[str] | None = None
    scheduler: Any = None
    jobs: int | None = None
    quantities: Sequence[str] | None = None
    retries: int = 2
    timeout: float = _TIMEOUT
    memory: int | None = None
    refresh: bool = False
    incomplete: bool = False
    report: Report = field(default=lambda done, total, failed: None)


@checked
def sweep(
    workload: Any,
    knobs: Mapping[str, object] | None = None,
    *,
    store: str | os.PathLike[str] | None = None,
    scheduler: Any = None,
    jobs: int | None = None,
    sampler: str = "grid",
    samples: int | None = None,
    seed: int = 0,
    quantities: Sequence[str] | None = None,
    retries: int = 2,
    timeout: float = _TIMEOUT,
    memory: int | None = None,
    refresh: bool = False,
    incomplete: bool = False,
    small: bool = False,
) -> pd.DataFrame:
    """Measure the same in many cells: one for each combination of knobs, or for each sample.

    Parameters
    ----------
    workload : str, Workload, sequence of those, callable or path
        What a cell measures. A workload is named, or of ``bm.workload()``; several of them are a
        knob, ``workload``. Others are a function of your own, whose arguments are the knobs, the
        path ``*.json`` of a scenario, and the path ``*.toml`` of a file that has all of this.
    knobs : mapping
        The values of each knob: a list, one value, or ``{"from": 1, "to": 512, "log": True}`` for
        samplers of ranges. Of a workload its parameters (``files`` ...), ``behaviour`` (without it
        both sides of its commit are measured), ``behaviour_before`` and ``behaviour_after`` (other
        kernels for these), any toggle (true or false),
        ``flipped`` (toggles of which one at a time is other than in that kernel; ``"*"`` for all),
        ``nodesize``, any limit of :data:`btrfs_model.limits.NAMES`, ``device``, ``device_`` and a
        parameter of it, ``machine``.
    store : path, optional
        A folder that remembers: what it has is not measured again.
    scheduler : str, concurrent.futures.Executor, dask.distributed Client or Cluster, optional
        Processes of this machine without it; ``"local"`` for a Dask cluster on it, or the address
        of one that there is, ``"tcp://HOST:PORT"``; or the object.
    jobs : int, optional
        How many cells at a time; as many as there are processors without it.
    sampler : str
        ``"grid"``, ``"list"`` (first values together, second values together ...), ``"random"``,
        ``"latin"`` (a Latin hypercube), ``"saltelli"`` or ``"morris"``.
    samples : int, optional
        How many; of saltelli and morris, points for each knob.
    seed : int
        Of the samples.
    quantities : sequence of str, optional
        What of the figures the table has; all without it.
    retries : int
        How often a cell is tried again whose process died.
    timeout : float
        Seconds after which a cell hangs: its process is ended.
    memory : int, optional
        Bytes that each process may have.
    refresh : bool
        Measure again what another model measured.
    incomplete : bool
        Give the table also where cells failed.
    small : bool
        Of a ``*.toml``: the cells of its table ``small``.

    Returns
    -------
    pandas.DataFrame
        A row for each cell, side and quantity, in the order of the cells whoever measured them: a
        column for each knob, what a figure depends on besides (such as ``fsync``), ``side``,
        ``quantity``, ``unit``, ``value``, and ``low`` and ``high``, the 90 % interval of a time.

    Raises
    ------
    IncompleteSweepError
        When cells failed, once all others are done.
    BtrfsModelError
        For a knob, value, sampler, scheduler or store that is none, before anything is measured.
    OSError
        When the store cannot be written.
    """
    settings = Settings(
        store, scheduler, jobs, quantities, retries, timeout, memory, refresh, incomplete
    )
    if isinstance(workload, str | os.PathLike) and os.fspath(workload).endswith(".toml"):
        from btrfs_model.experiments.sweep.spec import load

        if sampler != "grid" or samples or seed:
            raise BtrfsModelError("sweep: sampler, samples and seed stand in the file")
        spec = load(workload, small=small)
        settings.quantities = quantities or spec.quantities
        check_quantities(spec.target, settings.quantities or ())
        return carry_out(spec.target, spec.plan(knobs), settings)[0]
    if not knobs:
        raise BtrfsModelError("sweep: no knobs")
    target = target_of(workload)
    check_quantities(target, quantities or ())
    return carry_out(target, plan(target, knobs, sampler, samples, seed), settings)[0]


def check_quantities(target: Target, wanted: Sequence[str]) -> None:
    """Refuse names of figures that no cell has, where that is known before one is measured."""
    if not wanted or not (known := target.quantities()):
        return
    for one in wanted:
        if one not in known:
            raise _no_quantity(one, known)


def _no_quantity(name: str, known: Iterable[str]) -> BtrfsModelError:
    known = sorted(known)
    near = did_you_mean(name, known) or f"; there is {', '.join(known[:_SHOWN])}, ..."
    return BtrfsModelError(f"sweep: no cell has a quantity {name!r}{near}")


@contextmanager
def _store_of(settings: Settings) -> Iterator[Store]:
    if settings.store is not None:
        yield Store(settings.store)
        return
    with tempfile.TemporaryDirectory(prefix="btrfs-model-sweep-") as folder:
        yield Store(folder)


def carry_out(
    target: Target, planned: Plan, settings: Settings
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Do a sweep that is planned; see :func:`sweep` and :func:`frame`."""
    with _store_of(settings) as store:
        missing = [key for key in planned.keys if key not in store.done]
        if missing:
            if not settings.refresh and (stale := store.stale(missing)):
                raise BtrfsModelError(
                    f"{store.path}: another model measured {stale:,} of "
                    "these cells; refresh=True (--refresh) measures them again"
                )
            with store.writing(), engine(
                settings.scheduler, settings.jobs, settings.memory
            ) as (executor, jobs):  # fmt: skip
                # an executor of the caller's may be in this process
                own = isinstance(settings.scheduler, Executor)
                driver = Driver(
                    target, planned, store, settings.retries, None if own else settings.timeout
                )
                driver.run(executor, jobs, settings.report)
        table, cells = frame(planned, store, settings.quantities)
        _check_complete(planned, store, table, settings)
        for one in settings.quantities or ():
            if not (table["quantity"] == one).any():
                raise _no_quantity(one, frame(planned, store)[0]["quantity"].unique())
        return table, cells


def _check_complete(planned: Plan, store: Store, table: pd.DataFrame, settings: Settings) -> None:
    """Refuse a table in which cells are missing, unless it was asked for."""
    missing = [key for key in planned.keys if key not in store.done]
    if not missing or settings.incomplete:
        return
    failed = store.failed()
    first = next((failed[key] for key in missing if key in failed), None)
    text = f"sweep: {len(missing):,} of {len(planned):,} cells are missing"
    if first is not None:
        about = ", ".join(f"{name}={value}" for name, value in first["params"].items())
        count = sum(key in failed for key in missing)
        text = f"sweep: {count:,} of {len(planned):,} cells failed, first {about}: {first['error']}"
    raise IncompleteSweepError(f"{text} (incomplete=True, --incomplete: go on without them)", table)


def frame(
    planned: Plan, store: Store, quantities: Sequence[str] | None = None
) -> tuple[pd.DataFrame, NDArray[np.int64]]:
    """Return what a store has of a plan as a table, see :func:`sweep`, and the cell of each row."""
    found = store.table(planned.keys, quantities)
    cells = found["cell"].to_numpy()
    order = np.argsort(cells, kind="stable")
    found, cells = found.take(order), cells[order]
    columns: dict[str, Any] = {}
    for place, name in enumerate(planned.names):
        codes = planned.codes[cells, place]
        columns[name] = pd.Series(planned.values[place]).array.take(codes)
    texts, which = coded(found["case"])
    cases = [json.loads(one) for one in texts]
    for name in dict.fromkeys(name for one in cases for name in one):
        if name not in columns:
            values = pd.Series([one.get(name) for one in cases])
            if values.isna().any() and pd.api.types.is_numeric_dtype(values):
                values = values.astype("Int64")
            columns[name] = values.array.take(which.to_numpy())
    for name in ("side", "quantity", "unit"):
        columns[name] = found[name].cast(pa.string()).to_pandas()
    for name in ("value", "low", "high"):
        columns[name] = found[name].to_numpy()
    return pd.DataFrame(columns), cells


# ------------------------------------------------------------------------------ without work --


def status(planned: Plan, store: Store) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return how many cells are done, missing, failed and stale, and those that failed."""
    keys = planned.keys
    failed = store.failed()
    found = [failed[key] for key in keys if key in failed]
    done = sum(key in store.done for key in keys)
    stale = store.stale(keys)
    counts = {
        "cells": len(keys), "done": done, "failed": len(found), "stale": stale,
        "missing": len(keys) - done - len(found),
    }  # fmt: skip
    return counts, found


def dry_run(target: Target, planned: Plan, settings: Settings) -> dict[str, Any]:
    """Return how many cells there are, how many of them a store has, and about how long they take.

    Where the store has none, a few are measured; nothing is kept.
    """
    with _store_of(settings) as store, tempfile.TemporaryDirectory() as folder:
        done = sum(key in store.done for key in planned.keys)
        each = store.seconds(planned.keys)
        if each is None:
            cells = np.unique(np.linspace(0, len(planned) - 1, _PROBES).astype(int)).tolist()
            probes = [(planned.keys[cell], planned.params(cell)) for cell in cells]
            batch = measure(target, probes, Path(folder))
            each = batch.seconds / len(probes)
        jobs = settings.jobs or default_jobs()
        missing = len(planned) - done
        return {
            "cells": len(planned), "done": done, "missing": missing, "seconds_each": each,
            "jobs": jobs, "seconds": missing * each / jobs,
        }  # fmt: skip
