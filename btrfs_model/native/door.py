# SPDX-License-Identifier: GPL-2.0-only
"""The compiled module for the bindings beside it, and what its functions report as exceptions."""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from btrfs_model.base.codes import Code
from btrfs_model.base.counters import NAMES
from btrfs_model.base.errors import CorruptImageError, Fault, NotBuiltError
from btrfs_model.native import built
from btrfs_model.patches import Patch

_REMEDY: Final = "run `make build` in its folder"

try:
    from btrfs_model.native._native import ffi as ffi
    from btrfs_model.native._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != "btrfs_model.native._native":
        raise
    raise NotBuiltError(f"the C kernels of btrfs_model are not built: {_REMEDY}") from None


def _check_built() -> None:
    """See that the compiled module was made of what stands here; it would answer wrongly.

    Tables are compared always. Sources are beside the package in a clone alone, and are read only
    where one of them is newer than the module.

    Raises NotBuiltError: when it was not.
    """
    toggles = [f"BM_TOGGLE_{one.name}" for one in Patch if one.asked == "C"]
    counters = [*(f"BM_WORK_{name}" for name in NAMES), "BM_WORK_COUNT"]
    tables = {
        "bm_toggle": (dict(enumerate(toggles)), "patches.py"),
        "bm_counter": (dict(enumerate(counters)), "base/counters.py"),
        "bm_code": ({int(one): f"BM_{one.name}" for one in Code}, "base/codes.py"),
    }
    module = Path(sys.modules["btrfs_model.native._native"].__file__ or "")
    package = Path(__file__).resolve().parents[1]
    native = package.parent / "native"
    for name, (wanted, file) in tables.items():
        if ffi.typeof(f"enum {name}").elements != wanted:
            raise NotBuiltError(f"{module}: built of another {package / file}: {_REMEDY}")
    is_clone = (native / "kernels.h").is_file()
    # one that was built before there was a digest has none
    if (
        is_clone
        and built.is_newer(native, module)
        and getattr(lib, "BM_SOURCES", 0) != built.digest(native)
    ):
        raise NotBuiltError(f"{module}: built of other sources than {native}: {_REMEDY}")


_check_built()


def build() -> str:
    """Return what compiled the module, and whether it has assertions."""
    compiler = ffi.string(lib.bm_compiler()).decode().strip()
    return f"{compiler}, with assertions" if lib.bm_has_assertions() else compiler


@cache
def _array_of(dtype: np.dtype[Any]) -> Any:
    """Return the type of an array of such numbers in C; numpy takes long to name it."""
    return ffi.typeof(f"{dtype}_t[]")


def raw(array: npt.NDArray[Any]) -> ffi.CData:
    """Hand an array of numbers to C, which has to be contiguous; it must live as long."""
    return ffi.from_buffer(_array_of(array.dtype), array)


def dtype_of(c_type: Any) -> np.dtype[Any]:
    """Return a type of C as numpy has it: ``struct bm_key`` is the dtype of rows of keys."""
    c_type = ffi.typeof(c_type) if isinstance(c_type, str) else c_type
    if c_type.kind == "array":
        return np.dtype(f"({c_type.length},){dtype_of(c_type.item).str}")
    if c_type.kind == "primitive":
        return np.dtype(str(c_type.cname).removesuffix("_t"))
    fields = dict(c_type.fields)
    return np.dtype({
        "names": list(fields),
        "formats": [dtype_of(field.type) for field in fields.values()],
        "offsets": [field.offset for field in fields.values()],
        "itemsize": ffi.sizeof(c_type),
    })  # fmt: skip


# ------------------------------------------------------------------------------- faults ---


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
