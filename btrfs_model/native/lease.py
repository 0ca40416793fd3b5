# SPDX-License-Identifier: GPL-2.0-only
"""Who may use what C keeps of an image: one thread at a time, until the image is closed.

C knows an image by a pointer, and pointers do not say that they are stale. So there is one way to
it: whoever calls a C kernel holds the lease meanwhile::

    with image.lease as handle:
        lib.bm_image_...(handle, ...)

A lease is refused once the image is closed, and what a call uses is freed after the call. It makes
others wait, so that calls on one image follow each other, while those on different images run side
by side. It counts the work of the call where its context counts, and it ends in an error when the
file that is read was cut off meanwhile.

A process that is forked has the images of the one before it, each with what C keeps of it, and only
the thread that forked. So that thread takes all leases first. It waits a second at most for others,
as they may wait for what it does next; an image that is still in use then is refused in the new
process, where it is half changed for good.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from btrfs_model.base.counters import Work, current, current_context
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.native.door import ffi, lib, new_fault, raise_fault

# every search asks
_take_work, _of_context = lib.bm_image_take_work, current_context.get
_this_thread = threading.get_ident
P = ParamSpec("P")
R = TypeVar("R")

_PATIENCE: Final = 1.0

_kept: dict[int, list[ffi.CData]] = {}


def own(
    handle: ffi.CData, destroy: Callable[[ffi.CData], None], kept: list[ffi.CData]
) -> ffi.CData:
    """Let C destroy what it made when Python forgets it, and keep memory that it uses until then.

    A cycle of garbage is taken apart in any order, so what is kept must not be garbage with it.
    """
    key = id(kept)
    _kept[key] = kept

    def end(pointer: ffi.CData) -> None:
        destroy(pointer)
        del _kept[key]

    return ffi.gc(handle, end)


def _raw(work: Work) -> ffi.CData:
    """Return counters as a ``struct bm_work *``."""
    if work.raw is None:
        work.raw = ffi.from_buffer("struct bm_work[]", work.memory, require_writable=True)
    return work.raw


class Lease:
    """The right to use what C keeps of an image; held again and again by one thread.

    `path`: of the image, for errors.
    `handle` (struct bm_image *): what C keeps.
    `path` (str): the same.
    """

    __slots__ = ("__weakref__", "_acquire", "_depth", "_fault", "_handle", "_is_closed", "_late",
                 "_outer", "_owner", "_refused", "_release", "_work", "path")  # fmt: skip

    def __init__(self, path: str, handle: ffi.CData) -> None:
        lock = threading.RLock()
        self._acquire, self._release = lock.acquire, lock.release
        self.path = path
        self._handle = handle
        self._is_closed = False
        # why it is closed, where nobody closed it
        self._refused = ""
        key = id(self)
        _alive[key] = weakref.ref(self, lambda _: _alive.pop(key, None))
        self._fault = new_fault()
        # The thread that may hold it once more without asking; nobody else's number is there. What
        # it counts in, and how often it came that way.
        self._owner = 0
        self._work: Work | None = None
        self._depth = 0
        # what the last two were for those that hold it already, the outermost first
        self._outer: list[tuple[Work | None, int]] = []
        # what is freed when nobody holds it
        self._late: list[ffi.CData] = []

    def __enter__(self) -> ffi.CData:
        work = _of_context()
        if work is self._work and self._owner == _this_thread() and not work._ended:
            self._depth += 1
            return self._handle
        self._acquire()
        if self._is_closed:
            self._release()
            self.check_open()
        if work._ended:
            work = current()
        if self._work is not None and self._work is not work:
            _take_work(self._handle, _raw(self._work), self._fault)
        self._outer.append((self._work, self._depth))
        self._work, self._depth, self._owner = work, 0, _this_thread()
        return self._handle

    def __exit__(self, *_: object) -> None:
        if self._depth:
            self._depth -= 1
            return
        work = self._work
        assert work is not None, "nobody holds the lease"
        try:
            if _take_work(self._handle, work.raw or _raw(work), self._fault):
                raise_fault(self.path, self._fault)
        finally:
            self._work, self._depth = self._outer.pop()
            if not self._outer:
                self._owner = 0
                if self._late:
                    self._free()
            self._release()

    def run(self, kernel: Callable[..., int], *args: Any) -> int:
        """Call a kernel that takes a fault last; raise what it reports."""
        fault = new_fault()
        with self:
            ret = kernel(*args, fault)
        if ret < 0:
            raise_fault(self.path, fault)
        return ret

    def check_open(self) -> None:
        """See that the image is open.

        Raises ValueError: when it was closed.
        Raises BtrfsModelError: in a process that cannot have it.
        """
        if self._refused:
            raise BtrfsModelError(f"{self.path}: {self._refused}")
        if self._is_closed:
            raise ValueError(f"{self.path}: the image is closed")

    @property
    def handle(self) -> ffi.CData:
        """What C keeps of the image; for those who hold the lease."""
        assert self._outer, "nobody holds the lease"
        return self._handle

    def free(self, *owned: ffi.CData) -> None:
        """Free what C keeps and Python owns as soon as nobody uses the image."""
        self._acquire()
        try:
            self._late += owned
            if not self._outer:
                self._free()
        finally:
            self._release()

    def close(self, *owned: ffi.CData) -> None:
        """Refuse the lease from now on, and free what C keeps when nobody holds it any more."""
        self._acquire()
        try:
            if not self._is_closed:
                self._is_closed = True
                # whoever holds it is refused as well, from now on
                self._owner = 0
                self.free(self._handle, *owned)
        finally:
            self._release()

    def refuse(self, why: str) -> None:
        """Refuse the lease for good; what C keeps stays as it is, as nobody knows what it is.

        `why`: what the error says. For a process in which no other thread is.
        """
        self._is_closed, self._refused = True, why
        self._owner = 0
        lock = threading.RLock()
        self._acquire, self._release = lock.acquire, lock.release
        ffi.gc(self._handle, None)
        self._late.clear()

    def _free(self) -> None:
        while self._late:
            ffi.release(self._late.pop(0))


# ------------------------------------------------------------------------------ processes ---

_alive: dict[int, weakref.ref[Lease]] = {}
_forking = threading.local()


def _living() -> list[Lease]:
    there = (one() for one in list(_alive.values()))
    return [lease for lease in there if lease is not None]


def _before_fork() -> None:
    until = time.monotonic() + _PATIENCE
    _forking.held = [
        lease for lease in _living()
        if lease._acquire(timeout=max(0.0, until - time.monotonic()))
    ]  # fmt: skip


def _in_parent() -> None:
    for lease in _forking.held:
        lease._release()
    del _forking.held


def _in_child() -> None:
    held = set(map(id, _forking.held))
    _in_parent()
    for lease in _living():
        if id(lease) not in held:
            lease.refuse("a thread was using it when this process was forked; open it here")


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)


class Leased(Protocol):
    """An image: what C keeps of it is behind a lease."""

    path: str
    nodesize: int
    lease: Lease


def exclusive(call: Callable[P, R]) -> Callable[P, R]:
    """Let a call hold the lease of its filesystem or image (the first argument) all the time."""

    @wraps(call)
    def held(*args: P.args, **kwargs: P.kwargs) -> R:
        fs: Any = args[0] if args else kwargs["fs"]
        with getattr(fs, "image", fs).lease:
            return call(*args, **kwargs)

    return held
