# SPDX-License-Identifier: GPL-2.0-only
"""Cells in batches for an engine: handed out, handed out again when a process dies, remembered."""

from __future__ import annotations

import faulthandler
import math
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.experiments.sweep.engine import Workers, default_jobs
from btrfs_model.experiments.sweep.plan import Plan, optional
from btrfs_model.experiments.sweep.store import Batch, Store, part_of
from btrfs_model.experiments.sweep.target import Target

BATCH_SECONDS: Final = 1.0
"""Work of a batch, at least, where there is as much."""
_GROWTH: Final = 16
"""How many times as many cells a batch has as the one before, at most."""
_WEIGHT: Final = 0.3
_REARM: Final = 0.5
"""Seconds between two times that the alarm for a cell that hangs is set."""
Report = Callable[[int, int, int], None]
"""Called with the cells that are done, all that were missing, and those that failed."""


def measure(
    target: Target, cells: Sequence[tuple[str, Mapping[str, Any]]], images: Path,
    timeout: float | None = None,
) -> Batch:  # fmt: skip
    """Measure some cells; with a `timeout`, a cell that takes so many seconds ends the process.

    Raises MemoryError: when a cell has no memory; others may have more.
    """
    batch, found = Batch(), []
    started = time.perf_counter()
    armed = -math.inf
    with Path(os.devnull).open("w") as nowhere:
        try:
            for key, params in cells:
                if timeout is not None and (now := time.perf_counter()) - armed > _REARM:
                    faulthandler.dump_traceback_later(timeout + _REARM, exit=True, file=nowhere)
                    armed = now
                try:
                    found.append((key, params, target.measure(params, images)))
                except MemoryError:
                    raise
                except Exception as error:
                    batch.errors[key] = traceback.format_exception_only(error)[-1].strip()
        finally:
            faulthandler.cancel_dump_traceback_later()
    batch.seconds = time.perf_counter() - started
    batch.keys = [key for key, _, _ in found]
    if found:
        batch.part = part_of(found, batch.seconds)
    return batch


@contextmanager
def engine(scheduler: Any, jobs: int | None, memory: int | None) -> Iterator[tuple[Executor, int]]:
    """Start or find an engine; yield it, and how many cells it measures at a time.

    Raises BtrfsModelError: when it is not there, or what it needs is not installed.
    """
    if isinstance(scheduler, Executor):
        yield scheduler, jobs or 1
        return
    if scheduler is None:
        jobs = jobs or default_jobs()
        with Workers(jobs, memory=memory) as pool:
            yield pool, jobs
        return
    with _client(scheduler, jobs, memory) as client:
        threads = sum(client.nthreads().values())
        executor = client.get_executor(pure=False)
        try:
            yield executor, jobs or max(1, threads)
        finally:
            executor.shutdown(wait=False)


@contextmanager
def _client(scheduler: Any, jobs: int | None, memory: int | None) -> Iterator[Any]:
    """Find or start a Dask cluster, of which the caller may have a client or the object."""
    distributed = optional("distributed", "cluster")
    if not isinstance(scheduler, str):
        known = distributed.Client, distributed.deploy.cluster.Cluster
        if not isinstance(scheduler, known):
            kind = type(scheduler).__name__
            raise BtrfsModelError(
                f"sweep: scheduler is of {kind}: neither text, executor, client nor cluster"
            )
        _check_no_memory("the caller's cluster", memory)
        if isinstance(scheduler, distributed.Client):
            yield scheduler
            return
        with distributed.Client(scheduler) as client:
            yield client
        return
    if scheduler != "local" and "://" not in scheduler:
        raise BtrfsModelError(
            f"sweep: scheduler {scheduler!r} is neither 'local' nor an address tcp://HOST:PORT"
        )
    if scheduler == "local":
        cluster = distributed.LocalCluster(
            n_workers=jobs or default_jobs(), threads_per_worker=1,
            memory_limit=memory or "auto", dashboard_address=":0",
        )  # fmt: skip
        with cluster, distributed.Client(cluster) as client:
            yield client
        return
    _check_no_memory(scheduler, memory)
    try:
        client = distributed.Client(scheduler, timeout=10)
    except (OSError, ValueError) as error:
        raise BtrfsModelError(
            f"sweep: no scheduler answers at {scheduler}: {type(error).__name__}"
        ) from None
    with client:
        yield client


def _check_no_memory(scheduler: str, memory: int | None) -> None:
    if memory is not None:
        raise BtrfsModelError(f"sweep: what the processes of {scheduler} may have is said where "
                              "they are started (dask worker --memory-limit)")  # fmt: skip


class Driver:
    """The cells of a plan that a store does not have."""

    def __init__(
        self, target: Target, plan: Plan, store: Store, retries: int, timeout: float | None
    ) -> None:
        self.target, self.plan, self.store = target, plan, store
        self.retries, self.timeout = retries, timeout
        missing = [cell for cell, key in enumerate(plan.keys) if key not in store.done]
        self.total, self.done, self.failed = len(missing), 0, 0
        self._alone: deque[int] = deque()
        self._groups: dict[str, deque[int]] = {}
        self._at_work: dict[str, int] = {}
        for cell in missing:
            self._groups.setdefault(target.group(plan.params(cell)), deque()).append(cell)
        self._attempts: dict[int, int] = {}
        self._each = math.inf
        self._size = 1

    def run(self, executor: Executor, jobs: int, report: Report) -> None:
        """Measure them.

        Raises
        ------
        OSError
            When the store cannot be written; what it has is there.
        """
        running: dict[Future[Batch], tuple[list[int], str]] = {}
        while True:
            # one more waits for each process, so that none waits for this one
            while len(running) < 2 * jobs and (taken := self._take(jobs)) is not None:
                running[self._submit(executor, taken[0])] = taken
            if not running:
                return
            ready, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ready:
                cells, group = running.pop(future)
                self._at_work[group] -= 1
                self._finish(future, cells)
            report(self.done, self.total, self.failed)

    def _submit(self, executor: Executor, cells: list[int]) -> Future[Batch]:
        keyed = [(self.plan.keys[cell], self.plan.params(cell)) for cell in cells]
        return executor.submit(
            measure, self.target, keyed, self.store.images.absolute(), self.timeout
        )

    def _take(self, jobs: int) -> tuple[list[int], str] | None:
        """Take the cells of a batch, from what as few as possible are at work on."""
        if self._alone:
            return self._counted([self._alone.popleft()], "")
        left = self.total - self.done
        size = min(self._size, max(1, math.ceil(left / (2 * jobs))))
        taken: list[int] = []
        first = ""
        while len(taken) < size and self._groups:
            group = min(self._groups, key=lambda one: self._at_work.get(one, 0))
            cells = self._groups[group]
            first = first or group
            while cells and len(taken) < size:
                taken.append(cells.popleft())
            if not cells:
                del self._groups[group]
        return self._counted(taken, first) if taken else None

    def _counted(self, cells: list[int], group: str) -> tuple[list[int], str]:
        self._at_work[group] = self._at_work.get(group, 0) + 1
        return cells, group

    def _finish(self, future: Future[Batch], cells: list[int]) -> None:
        """Remember a batch; where its process died, let each of its cells be tried alone."""
        try:
            batch = future.result()
        except Exception as error:
            why = traceback.format_exception_only(error)[-1].strip()
            for cell in cells:
                self._attempts[cell] = self._attempts.get(cell, 0) + 1
                if self._attempts[cell] > self.retries:
                    self._fail(cell, why)
                else:
                    self._alone.append(cell)
            return
        self.store.add(batch)
        self.done += len(batch.keys)
        by_key = {self.plan.keys[cell]: cell for cell in cells}
        for key, said in batch.errors.items():
            self._fail(by_key[key], said)
        each = batch.seconds / len(cells)
        self._each = each if math.isinf(self._each) else (
            self._each + _WEIGHT * (each - self._each))  # fmt: skip
        wanted = math.ceil(BATCH_SECONDS / max(self._each, 1e-6))
        self._size = max(1, min(wanted, len(cells) * _GROWTH))

    def _fail(self, cell: int, error: str) -> None:
        self.store.fail(self.plan.keys[cell], self.plan.params(cell), error)
        self.done += 1
        self.failed += 1
