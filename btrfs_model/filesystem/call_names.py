# SPDX-License-Identifier: GPL-2.0-only
"""Errors of a call name the file that it was called for."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar, cast

from btrfs_model.errors import BtrfsModelError

__all__ = ["about"]

F = TypeVar("F", bound=Callable[..., Any])


def about(parameter: str) -> Callable[[F], F]:
    """Let errors of a method of a filesystem name the path in a parameter.

    What goes wrong below the calls, such as ENOSPC, knows no path or names the image. Errors that
    name a file already keep its name, and damage is in the image.
    """

    def decorate(method: F) -> F:
        place = list(signature(method).parameters).index(parameter)

        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            try:
                return method(*args, **named)
            except OSError as error:
                nameless = error.filename is None or error.filename == args[0].path
                if nameless and error.errno is not None and not isinstance(error, BtrfsModelError):
                    path = named[parameter] if parameter in named else args[place]
                    error.filename = os.fsdecode(path)
                raise

        return cast(F, call)

    return decorate
