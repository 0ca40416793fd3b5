# SPDX-License-Identifier: GPL-2.0-only
"""User-Mode Linux: a second kernel to judge images, which needs no root.

The guest is that of Debian's package ``user-mode-linux``; ``BTRFS_MODEL_UML`` names another
``usr/bin/linux.uml``, that of an unpacked package of another release, say. Its root is the
machine's own tree (hostfs), with the rights of whoever runs the tests; images are its loop devices.
A boot takes a few seconds, so one guest judges many images.
"""

import functools
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from kernel_session import KernelSession

_KERNEL = os.environ.get("BTRFS_MODEL_UML", "/usr/bin/linux.uml")
_MODULES = Path(_KERNEL).parents[1] / "lib" / "uml" / "modules"
_INIT = """\
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
[ -c /dev/null ] || mount -t devtmpfs none /dev
stty raw -echo
exec {python} -S -E -B {folder}/kernel_agent.py {folder} {modules}
"""
_SHM = "/dev/shm"
_MEMORY = 512 << 20
_XSTATE = Path(__file__).parent / "uml_xstate.c"


def why_not_uml() -> str:
    """Why there is no guest here; empty when there can be one."""
    if platform.machine() != "x86_64":
        return f"User-Mode Linux is for x86_64, this is {platform.machine()}"
    if not Path(_KERNEL).exists():
        return f"{_KERNEL} is not here (Debian: package user-mode-linux)"
    if not list(_MODULES.glob("*/kernel/drivers/block/loop.ko*")):
        return f"User-Mode Linux has no module loop.ko below {_MODULES}"
    if _has_large_registers() and not shutil.which("cc"):
        return "User-Mode Linux does not know this processor's AMX, and there is no cc to help it"
    return ""


@functools.cache
def _has_large_registers() -> bool:
    """Whether the state of a process on this processor is larger than the guest thinks."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def _has_room(folder: str) -> bool:
    """Whether several guests can have their memory in a folder; they run code that is in it."""
    if not os.access(folder, os.W_OK):
        return False
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    return free >= 4 * _MEMORY and not status.f_flag & os.ST_NOEXEC


class Guest(KernelSession):
    """A guest; the agent is its first process."""

    def command(self) -> list[str]:
        init = self.folder / "init"
        python = shlex.quote(sys.executable)
        folder, modules = (shlex.quote(str(path)) for path in (self.folder, _MODULES))
        init.write_text(_INIT.format(python=python, folder=folder, modules=modules))
        return [
            _KERNEL, f"mem={_MEMORY >> 20}M",
            "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
            f"uml_dir={self.folder}", "umid=guest", "con=null", "con0=fd:0,fd:1", "quiet",
            "init=/bin/sh", "--", str(init),
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        # the guest's memory is a file there
        added = {"TMPDIR": _SHM if _has_room(_SHM) else str(self.folder)}
        if not _has_large_registers():
            return added
        library = self.folder / "xstate.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_XSTATE)],
                       check=True)  # fmt: skip
        return {**added, "LD_PRELOAD": str(library)}
