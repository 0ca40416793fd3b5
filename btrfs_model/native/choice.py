# SPDX-License-Identifier: GPL-2.0-only
"""C or Python: where ``btrfs_model.reference`` has what a C kernel does.

``BTRFS_MODEL_KERNELS=python`` selects the Python: slow, for reading and for testing the C against.
A test (or a notebook) switches with :func:`select`; the environment is that of the import. A choice
belongs to the context (:mod:`contextvars`) that makes it, as counters do: other threads and tasks
keep theirs, and a ``threading.Thread`` starts with that of the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib import import_module
from typing import Any, Literal, ParamSpec, TypeVar

from btrfs_model.base.errors import UnknownCodeError
from btrfs_model.base.nearest import did_you_mean

Choice = Literal["c", "python"]
_CHOICES = ("c", "python")
P = ParamSpec("P")
R = TypeVar("R")

_choice: ContextVar[str] = ContextVar(
    "C or Python", default=os.environ.get("BTRFS_MODEL_KERNELS") or "c"
)
# asked by every search
_chosen = _choice.get


def use_python() -> bool:
    """Whether the Python of ``reference`` is to be used.

    Raises UnknownCodeError: when ``BTRFS_MODEL_KERNELS`` is neither ``c`` nor ``python``.
    """
    choice = _chosen()
    if choice not in _CHOICES:
        near = did_you_mean(choice, _CHOICES)
        raise UnknownCodeError(f"BTRFS_MODEL_KERNELS={choice}: neither 'c' nor 'python'{near}")
    return choice == "python"


@contextmanager
def select(choice: Choice) -> Iterator[None]:
    """Use C or Python inside the ``with`` block, whatever the environment says.

    Only this context does: what other threads and tasks do is as before.

    Raises ValueError: when `choice` is neither ``"c"`` nor ``"python"``.
    """
    if choice not in _CHOICES:
        raise ValueError(f"use_code(): choice is 'c' or 'python', not {choice!r}")
    before = _chosen()
    _choice.set(choice)
    try:
        yield
    finally:
        # a generator may end in another context than it began in, which a token refuses
        _choice.set(before)


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
            if _chosen() != "c" and use_python():
                return reference()(*args, **kwargs)  # type: ignore[no-any-return]
            return calls_c(*args, **kwargs)

        return call

    return decorate
