# SPDX-License-Identifier: GPL-2.0-only
"""The door to the C kernels.

``BTRFS_MODEL_KERNELS=python`` selects the plain Python twins instead: slow, short, for reading and
for testing the C against. Everything that has a twin asks :func:`use_python` at the time of the
call, so that a test (or a notebook) can switch with :func:`select`; the environment is that of the
import.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal


class NotBuiltError(ImportError):
    """The C kernels were not compiled; the package can be imported, but not used."""


try:
    from btrfs_model._native import ffi as ffi
    from btrfs_model._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != "btrfs_model._native":
        raise
    raise NotBuiltError(
        "the C kernels of btrfs_model are not built: run `make build` in its folder"
    ) from None

Choice = Literal["c", "python"]

_CHOICES = ("c", "python")
# looked up once: every search asks
_environment = os.environ.get("BTRFS_MODEL_KERNELS") or "c"
_selected: str | None = None


def use_python() -> bool:
    """Whether the Python twins are to be used.

    Raises
    ------
    ValueError
        When ``BTRFS_MODEL_KERNELS`` is neither ``c`` nor ``python``.
    """
    choice = _selected or _environment
    if choice not in _CHOICES:
        raise ValueError(f"BTRFS_MODEL_KERNELS={choice}: neither 'c' nor 'python'")
    return choice == "python"


# ------------------------------------------------------------------------------- signals ---

_raised = threading.local()


def keep(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Keep what a callback of a kernel raised until :func:`interruption`: its ``onerror``.

    A handler of a signal may raise before the callback's first statement, out of reach of a ``try``
    in it.
    """
    _raised.error = error.with_traceback(traceback)


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def bm_python_poll() -> int:
    """Give Python the chance to run the handlers of signals, which it does before this returns.

    What a handler raises (KeyboardInterrupt for SIGINT) ends the kernel, and is kept until then.
    """
    return 0


lib.bm_set_poll(lib.bm_python_poll)


def interruption() -> BaseException:
    """Return what a callback or a handler of a signal raised while a kernel of this thread ran."""
    error: BaseException = _raised.__dict__.pop("error")
    return error


@contextmanager
def select(choice: Choice) -> Iterator[None]:
    """Use C or Python inside the ``with`` block, whatever the environment says."""
    global _selected
    before, _selected = _selected, choice
    try:
        yield
    finally:
        _selected = before
