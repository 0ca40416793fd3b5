# SPDX-License-Identifier: GPL-2.0-only
# What cffi makes of native/kernels.h: everything in it is known at run time only.
from typing import Any, TypeAlias

class _AnyAttribute(type):
    def __getattr__(cls, name: str) -> Any: ...

class ffi(metaclass=_AnyAttribute):  # noqa: N801
    CData: TypeAlias = Any

lib: Any
