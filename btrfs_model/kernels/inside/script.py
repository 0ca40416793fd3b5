# SPDX-License-Identifier: GPL-2.0-only
"""A script as commit messages have them: it makes a filesystem on ``$DEV`` and mounts ``$MNT``."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from btrfs_model.kernels.inside import counted


def run_script(command: Sequence[str], device: str, top: str) -> tuple[float, str]:
    """Run a script; how many milliseconds it took, and what it said.

    Raises
    ------
    OSError
        When it fails, with the last line that it said.
    """
    Path(top).mkdir(exist_ok=True)
    began = time.perf_counter_ns()
    ran = subprocess.run(command, env={**os.environ, "DEV": device, "MNT": top}, cwd=top,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         errors="replace")  # fmt: skip
    took = time.perf_counter_ns() - began
    while os.path.ismount(top) and not subprocess.run(["umount", top]).returncode:
        pass
    if ran.returncode:
        said = (ran.stdout.strip().splitlines() or [""])[-1]
        raise OSError(f"{command[-1]}: status {ran.returncode}: {said}")
    return took / 1e6, ran.stdout


def count_script(command: Sequence[str], device: str, top: str, target: str) -> None:
    """Run a script; keep what of btrfs ran, with the mount and the unmount, in a folder."""
    counted.forget()
    run_script(command, device, top)
    counted.keep(target)
