# SPDX-License-Identifier: GPL-2.0-only
"""Functions that sweeps of tests measure, in processes that import them from here."""

import os
import signal
import time
from pathlib import Path

NUMBER = 1


def quick(a: int, b: int = 0, name: str = "x") -> dict[str, float]:
    """A few numbers that depend on the knobs."""
    return {"sum": a + b, "product": a * b, f"named {name}": a / 3}


def noted(a: int, log: str, seconds: float = 0.0) -> float:
    """A number; a line in a file says that it was measured, once it was."""
    time.sleep(seconds)
    with Path(log).open("a") as file:
        file.write(f"{a}\n")
    return a * 1.5


def failing(a: int) -> float:
    """Fail for every third."""
    if a % 3 == 0:
        raise ValueError(f"{a} is a multiple of 3")
    return float(a)


def deadly(a: int, folder: str, how: str) -> float:
    """Die the first time, for one cell."""
    seen = Path(folder) / f"{a}"
    if a == 2 and not seen.exists():
        seen.touch()
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hangs":
            time.sleep(1000)
        raise MemoryError
    return a + 0.5


def always_deadly(a: int) -> float:
    """Die each time, for one cell."""
    if a == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(a)


def greedy(a: int, megabytes: int) -> float:
    """Take memory."""
    return float(len(bytearray(megabytes << 20)) + a)


def ishigami(x: float, y: float, z: float) -> float:
    """The function that every paper on sensitivity has; its indices are known."""
    from math import sin

    return sin(x) + 7 * sin(y) ** 2 + 0.1 * z**4 * sin(x)
