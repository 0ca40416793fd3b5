# SPDX-License-Identifier: GPL-2.0-only
"""btrfs-progs as a judge."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

needs_progs = pytest.mark.skipif(
    shutil.which("btrfs") is None, reason="btrfs-progs is not installed"
)
_ODD = re.compile(r"\b(errors?|warnings?|bad|mismatch|invalid|wrong)\b", re.IGNORECASE)
# of a check that found nothing: the steps, the result, and that mounts cannot be looked at
_USUAL = re.compile(r"\[\d/\d\] |.*no error found|WARNING: cannot check mount status")


def btrfs_check(image: Path, *, data: bool = True) -> str:
    """What ``btrfs check`` has to say against an image, with `data` against checksums of data too.

    Empty when it finds nothing, or is not installed.
    """
    if shutil.which("btrfs") is None:
        return ""
    # forced: who is not root may not see whether a loop device that is mounted is this image
    options = ["--readonly", "--force", *(["--check-data-csum"] if data else [])]
    done = subprocess.run(["btrfs", "check", *options, image.name], cwd=image.parent,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    odd = [line for line in done.stdout.splitlines() if _ODD.search(line)]
    good = done.returncode == 0 and "no error found" in done.stdout
    return "" if good and all(map(_USUAL.match, odd)) else f"{done.returncode}\n{done.stdout}"


def why_mounts_are_unknown() -> str:
    """Why commands of btrfs-progs that spare mounted images fail here; empty where they do not."""
    for line in Path("/proc/mounts").read_text().splitlines():
        device = line.split()[0]
        if device.startswith("/dev/loop") and not os.access(device, os.R_OK):
            return f"{device} is mounted, and btrfs-progs may not look at what is in it"
    return ""
