# SPDX-License-Identifier: GPL-2.0-only
"""What C kernels report, as exceptions; and what interrupts them."""

from __future__ import annotations

import os
import threading
from typing import Any, NoReturn

from btrfs_model.base.codes import Code
from btrfs_model.base.errors import CorruptImageError, Fault
from btrfs_model.native.door import ffi, lib


def new_fault() -> ffi.CData:
    """Return an empty ``struct bm_fault`` for a kernel to fill."""
    return ffi.new("struct bm_fault *")


def fault_of(raw: ffi.CData) -> Fault:
    """Take over a ``struct bm_fault``."""
    return Fault(raw.code, raw.tree, raw.block, raw.slot, raw.offset, raw.found, raw.wanted,
                 raw.device)  # fmt: skip


def raise_fault(path: str | os.PathLike[str], fault: ffi.CData) -> NoReturn:
    """Raise the exception for a fault that a kernel reported.

    `path`: the image.
    `fault` (struct bm_fault *): as filled by the kernel.
    Raises CorruptImageError: for a broken structure.
    Raises MemoryError: when the kernel could not allocate.
    Raises OSError: with the errno that a real kernel would return.
    Raises BaseException: what the handler of a signal raised while the kernel ran, such as
    KeyboardInterrupt.
    """
    if fault.code == Code.CALLBACK:
        raise interruption()
    if fault.code == Code.NOMEM:
        raise MemoryError("out of memory in a C kernel")
    if fault.code == Code.ERRNO:
        raise OSError(fault.found, os.strerror(fault.found), os.fspath(path))
    raise CorruptImageError(path, fault_of(fault))


# ------------------------------------------------------------------------------- signals ---

_raised = threading.local()


def keep(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Keep what a callback of a kernel raised until :func:`interruption`: its ``onerror``.

    A handler of a signal may raise before the callback's first statement, out of reach of a ``try``
    in it.
    """
    _raised.error = error.with_traceback(traceback)


def interruption() -> BaseException:
    """Return what a callback or a handler of a signal raised while a kernel of this thread ran."""
    error: BaseException = _raised.__dict__.pop("error")
    return error


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_poll() -> int:
    """Give Python the chance to run the handlers of signals, which it does before this returns.

    What a handler raises (KeyboardInterrupt for SIGINT) ends the kernel, and is kept until then.
    """
    return 0


lib.bm_set_poll(lib.bm_python_poll)
