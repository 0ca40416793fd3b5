# SPDX-License-Identifier: GPL-2.0-only
"""What the errors of a call mean: for which file it failed, and whether the transaction is lost."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from inspect import signature
from typing import Any, Final, TypeVar, cast

from btrfs_model.base.errors import BtrfsModelError, CorruptImageError
from btrfs_model.mount.mount import Mount

F = TypeVar("F", bound=Callable[..., Any])

# of an item: the trees contradict each other
_CONTRADICTIONS: Final = (errno.ENOENT, errno.EEXIST)


def about(parameter: str) -> Callable[[F], F]:
    """Let a method of a filesystem hold its lease, and its errors name the path in a parameter.

    What goes wrong below the calls, such as ENOSPC, knows no path or names the image. Errors that
    name a file already keep its name, and damage is in the image. Where damage shows after the call
    has begun to change something, the transaction is aborted (``btrfs_abort_transaction()``).
    """

    def decorate(method: F) -> F:
        place = list(signature(method).parameters).index(parameter)

        @functools.wraps(method)
        def call(*args: Any, **named: Any) -> Any:
            fs: Mount = args[0]
            with fs.image.lease:
                started = fs.started
                try:
                    return method(*args, **named)
                except CorruptImageError:
                    fs.aborted = fs.aborted or fs.started != started
                    raise
                except OSError as error:
                    nameless = error.filename is None or error.filename == fs.path
                    if not nameless or error.errno is None or isinstance(error, BtrfsModelError):
                        raise
                    if error.errno in _CONTRADICTIONS and fs.started != started:
                        fs.aborted = True
                        raise
                    path = named[parameter] if parameter in named else args[place]
                    error.filename = str(path) if isinstance(path, int) else os.fsdecode(path)
                    raise

        return cast(F, call)

    return decorate
