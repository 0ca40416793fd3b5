# SPDX-License-Identifier: GPL-2.0-only
"""The compiled module, for the bindings beside it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


class NotBuiltError(ImportError):
    """The C kernels were not compiled; what does not need them can be used."""


try:
    from btrfs_model.native._native import ffi as ffi
    from btrfs_model.native._native import lib as lib
except ModuleNotFoundError as error:
    if error.name != "btrfs_model.native._native":
        raise
    raise NotBuiltError(
        "the C kernels of btrfs_model are not built: run `make build` in its folder"
    ) from None


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
