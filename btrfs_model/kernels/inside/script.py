# SPDX-License-Identifier: GPL-2.0-only
"""A script as commit messages have them: it makes a filesystem on ``$DEV`` and mounts ``$MNT``.

Or it names devices and folders itself: these are there for it, in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from btrfs_model.kernels.inside import counted

# The guest's root is the machine's own tree: nothing may be made in it where a mount fails.
_ALONE = """\
set -e
grep -q ' /dev devtmpfs ' /proc/mounts || mount -t devtmpfs none /dev
{devices}
{folders}
set +e
"$@"
status=$?
cd /
umount -a -t btrfs 2>/dev/null
exit $status
"""


def run_script(
    command: Sequence[str], sources: Mapping[str, str], top: str, folders: Sequence[str]
) -> tuple[float, str]:
    """Run a script; how many milliseconds it took, and what it said.

    Parameters
    ----------
    command : sequence of str
        What runs it.
    sources : mapping
        Blank devices, by the names that the script has for them; the first one is ``$DEV``, too.
    top : str
        ``$MNT``.
    folders : sequence of str
        Mount points of the script's own, below ``/mnt``.

    Raises
    ------
    OSError
        When it fails, with the last line that it said.
    """
    Path(top).mkdir(exist_ok=True)
    names = [name for name in sources if name]
    if names or folders:
        links = [f"ln -sfn {sources[name]} {shlex.quote(name)}" for name in names]
        made = ["mount -t tmpfs none /mnt", f"mkdir -p {shlex.join(folders)}"] if folders else []
        alone = _ALONE.format(devices="\n".join(links), folders="\n".join(made))
        command = ["unshare", "-m", "sh", "-c", alone, "sh", *command]
    began = time.perf_counter_ns()
    ran = subprocess.run(command, env={**os.environ, "DEV": next(iter(sources.values())),
                                       "MNT": top},
                         cwd=top, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         errors="replace")  # fmt: skip
    took = time.perf_counter_ns() - began
    while os.path.ismount(top) and not subprocess.run(["umount", top]).returncode:
        pass
    if ran.returncode:
        said = (ran.stdout.strip().splitlines() or [""])[-1]
        raise OSError(f"{command[-1]}: status {ran.returncode}: {said}")
    return took / 1e6, ran.stdout


def count_script(
    command: Sequence[str], sources: Mapping[str, str], top: str, folders: Sequence[str],
    target: str,
) -> str:  # fmt: skip
    """Run a script; keep what of btrfs ran, with the mount and the unmount, in a folder.

    Returns what the script said.
    """
    counted.forget()
    _, said = run_script(command, sources, top, folders)
    counted.keep(target)
    return said
