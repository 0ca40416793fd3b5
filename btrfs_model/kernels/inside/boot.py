# SPDX-License-Identifier: GPL-2.0-only
"""The first program of a guest of qemu: it makes this machine's tree the guest's.

It is all that there is in memory at first, with the Python that runs it.
"""

from __future__ import annotations

import ctypes
import os
import tty
from pathlib import Path

TREE = "tree"
"""Tag of this machine's tree; the folders are ``folder0``, ``folder1``."""
MODULES = Path("/modules")
_INIT_MODULE = 175
_READ_ONLY = 1
_HOST = Path("/host")
_SHARED = "trans=virtio,version=9p2000.L,msize=524288"
_TERMINAL = "/dev/hvc0"
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


def _call(name: str, done: int) -> None:
    if done:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)


def load(module: Path) -> None:
    """Load a module that is not compressed."""
    code = module.read_bytes()
    libc = ctypes.CDLL(None, use_errno=True)
    _call(str(module), libc.syscall(_INIT_MODULE, code, ctypes.c_ulong(len(code)), b""))


def mount(source: str, place: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount, on a folder that is made where there is none."""
    if not place.is_dir():
        place.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    words = (source.encode(), str(place).encode(), kind.encode())
    _call(str(place), libc.mount(*words, ctypes.c_ulong(flags), options.encode()))


def below(place: str) -> Path:
    """Return where a place of this machine is, seen from the first tree."""
    return _HOST / place.lstrip("/")


def main(folders: list[str], command: list[str]) -> None:
    """Mount what is shared, `folders` for writing, and go on with a command."""
    mount("proc", Path("/proc"), "proc")
    mount("dev", Path("/dev"), "devtmpfs")
    for module in sorted(MODULES.iterdir()):
        load(module)
    mount(TREE, _HOST, "9p", _READ_ONLY, f"{_SHARED},cache=loose")
    for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"),
                        ("tmpfs", "/run"), ("tmpfs", "/var/lib")):  # fmt: skip
        mount(kind, below(place), kind)
    for number, folder in enumerate(folders):
        mount(f"folder{number}", below(folder), "9p", 0, f"{_SHARED},cache=none")
    os.chroot(_HOST)
    os.chdir(folders[0])
    terminal = os.open(_TERMINAL, os.O_RDWR)
    tty.setraw(terminal)
    for number in range(3):
        os.dup2(terminal, number)
    os.execve(command[0], command, _ENVIRONMENT)
