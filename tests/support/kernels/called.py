# SPDX-License-Identifier: GPL-2.0-only
"""Functions that tests call in a kernel, to see what comes back."""

import os
import time
from pathlib import Path


def doubled(data: bytes, *, times: int = 2) -> list[bytes]:
    return [data] * times


def failing(path: str) -> None:
    raise FileNotFoundError(2, "there is none", path)


def dying() -> None:
    os._exit(3)


def sleeping(seconds: float) -> None:
    time.sleep(seconds)


def busy(place: str, seconds: float) -> None:
    """Sleep; a file says that it began."""
    Path(place).touch()
    time.sleep(seconds)


def chatty() -> int:
    for number in range(100):
        print("line", number)
    return os.getpid()


def odd() -> object:
    return object()
