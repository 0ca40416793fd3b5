# SPDX-License-Identifier: GPL-2.0-only
"""Processes of this machine behind the interface of :mod:`concurrent.futures`.

``ProcessPoolExecutor`` loses everything that it has when one process dies, and imports the script
that called it. Here a process that dies costs the task that it had, and imports nothing but what
the task names. A task that waits in the queue has not begun.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final

import cloudpickle

from btrfs_model.base.errors import BtrfsModelError

_SERVE: Final = "from btrfs_model.experiments.sweep.engine import serve; serve({}, {})"
_VICTIM: Final = 800
"""Without memory the kernel ends such a process before the one that waits for it."""

_parent: Connection | None = None


class WorkerDiedError(BtrfsModelError):
    """A process ended in the middle of a task: killed, without memory, or after its time."""


def default_jobs() -> int:
    """Return how many processors there are for this process."""
    return len(os.sched_getaffinity(0))


def tell(text: str) -> None:
    """Tell the process that waits what is being done, if there is one."""
    if _parent is not None:
        _parent.send_bytes(pickle.dumps(("told", text)))


class _Process:
    """A process, and the pipe to it."""

    def __init__(self, memory: int | None) -> None:
        ours, its = socket.socketpair()
        with its:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-c", _SERVE.format(its.fileno(), memory)],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(one or "." for one in sys.path)},
            )
        self.pipe = Connection(ours.detach())

    def ask(self, task: bytes, told: Callable[[str], None]) -> tuple[str, Any]:
        """Have a task done; the kind of the answer is ``result`` or ``error``."""
        self.pipe.send_bytes(task)
        while True:
            kind, value = pickle.loads(self.pipe.recv_bytes())
            if kind != "told":
                return kind, value
            told(value)

    def end(self) -> int:
        """Kill it, and return how it ended."""
        self.pipe.close()
        self.popen.kill()
        return self.popen.wait()


class Workers(Executor):
    """A pool of processes.

    Parameters
    ----------
    jobs : int
        How many.
    told : callable, optional
        Called with what tasks :func:`tell`, from threads.
    memory : int, optional
        Bytes that a process may have for its data; beyond them it gets a :exc:`MemoryError`.
    """

    def __init__(
        self,
        jobs: int,
        told: Callable[[str], None] = lambda text: None,
        memory: int | None = None,
    ) -> None:
        self._told, self._memory = told, memory
        self._tasks: SimpleQueue[tuple[Future[Any], bytes] | None] = SimpleQueue()
        self._processes: dict[int, _Process] = {}
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(number,), daemon=True)
            for number in range(jobs)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand in a task; its future fails with :exc:`WorkerDiedError` if the process dies."""
        future: Future[Any] = Future()
        self._tasks.put((future, cloudpickle.dumps((fn, args, kwargs))))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes: when all tasks are done, or at once where they are cancelled."""
        if cancel_futures:
            self._closed = True
            with suppress(Empty):
                while (task := self._tasks.get_nowait()) is not None:
                    task[0].cancel()
            for process in list(self._processes.values()):
                process.popen.kill()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        _: TracebackType | None,
    ) -> None:
        """End the processes, at once after an error."""
        self.shutdown(cancel_futures=kind is not None)

    def _serve(self, number: int) -> None:
        """Let one process after the other do tasks."""
        while (task := self._tasks.get()) is not None:
            future, message = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                kind, value = self._ask(number, message)
            except Exception as error:
                kind, value = "error", error
            (future.set_result if kind == "result" else future.set_exception)(value)
        if process := self._processes.pop(number, None):
            process.end()

    def _ask(self, number: int, message: bytes) -> tuple[str, Any]:
        process = self._processes.get(number)
        if process is None or process.popen.poll() is not None:
            # one that died while it had nothing to do has cost nothing
            if process is not None:
                process.end()
            process = self._processes[number] = _Process(self._memory)
        try:
            if self._closed:
                raise EOFError
            return process.ask(message, self._told)
        except (EOFError, OSError):
            del self._processes[number]
            raise WorkerDiedError(f"its process ended: {_how(process.end())}") from None


def _how(status: int) -> str:
    if status < 0:
        return f"{signal.Signals(-status).name}, which is also what comes without memory"
    return f"status {status}"


# --------------------------------------------------------------------------- in the process --


def serve(descriptor: int, memory: int | None) -> None:
    """Do tasks until nobody waits for more."""
    global _parent
    signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_VICTIM))
    if memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    _parent = Connection(descriptor)
    with suppress(EOFError, OSError):
        while True:
            _parent.send_bytes(_answer(_parent.recv_bytes()))
    # what threads of a task still do is of no use to anybody
    os._exit(0)


def _packed(kind: str, value: object) -> bytes:
    return bytes(cloudpickle.dumps((kind, value)))


def _answer(message: bytes) -> bytes:
    try:
        function, args, kwargs = pickle.loads(message)
        return _packed("result", function(*args, **kwargs))
    except Exception as error:
        with suppress(Exception):
            answer = _packed("error", error)
            pickle.loads(answer)
            return answer
        text = traceback.format_exception_only(error)[-1].strip()
        return pickle.dumps(("error", BtrfsModelError(text)))
