# SPDX-License-Identifier: GPL-2.0-only
"""C or Python: where ``btrfs_model.reference`` has what a C kernel does.

``BTRFS_MODEL_KERNELS=python`` selects the Python: slow, for reading and for testing the C against.
A test (or a notebook) switches with :func:`select`; the environment is that of the import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar

Choice = Literal["c", "python"]
P = ParamSpec("P")
R = TypeVar("R")

_choice: str = os.environ.get("BTRFS_MODEL_KERNELS") or "c"


def use_python() -> bool:
    """Whether the Python of ``reference`` is to be used.

    Raises ValueError: when ``BTRFS_MODEL_KERNELS`` is neither ``c`` nor ``python``.
    """
    if _choice not in ("c", "python"):
        raise ValueError(f"BTRFS_MODEL_KERNELS={_choice}: neither 'c' nor 'python'")
    return _choice == "python"


@contextmanager
def select(choice: Choice) -> Iterator[None]:
    """Use C or Python inside the ``with`` block, whatever the environment says.

    Raises ValueError: when `choice` is neither ``"c"`` nor ``"python"``.
    """
    global _choice
    if choice not in ("c", "python"):
        raise ValueError(f"use_kernels(): choice is 'c' or 'python', not {choice!r}")
    before, _choice = _choice, choice
    try:
        yield
    finally:
        _choice = before


def twin(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Name what stands in for a function that calls C, with the same arguments and results.

    `name`: ``"module:function"``, the module below ``btrfs_model``.
    """
    module, _, function = name.partition(":")

    @cache
    def reference() -> Any:
        return getattr(import_module(f"btrfs_model.{module}"), function)

    def decorate(calls_c: Callable[P, R]) -> Callable[P, R]:
        @wraps(calls_c)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if _choice != "c" and use_python():
                return reference()(*args, **kwargs)  # type: ignore[no-any-return]
            return calls_c(*args, **kwargs)

        return call

    return decorate
