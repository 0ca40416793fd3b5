# SPDX-License-Identifier: GPL-2.0-only
"""A kernel of Debian under qemu's emulation, without KVM: any release, for an ordinary user.

:func:`btrfs_model.kernels.debian.get` unpacks the kernel with the few modules that are needed. The
guest's root is the machine's own tree, read-only, by 9p; the session's folders are shared for
writing, and images are on loop devices. A boot takes half a minute, and all else is some twenty
times as slow as in User-Mode Linux.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.kernels import initramfs
from btrfs_model.kernels.inside.boot import TREE
from btrfs_model.kernels.session import Kernel

QEMU = "qemu-system-x86_64"
# It ends with who started it: qemu itself goes on when nobody writes to it any more.
_GUARD = """\
import os, select, shutil, subprocess, sys
images, folder, *command = sys.argv[1:]
guest = subprocess.Popen(command, stdin=subprocess.PIPE)
ended = os.pidfd_open(guest.pid)
while 0 in (ready := select.select([0, ended], [], [])[0]) and (said := os.read(0, 65536)):
    guest.stdin.write(said)
    guest.stdin.flush()
if 0 in ready:
    guest.kill()
    for place in (folder, images):
        shutil.rmtree(place, ignore_errors=True)
sys.exit(guest.wait())
"""


def why_not() -> str:
    """Why there is no emulation here; empty when there is."""
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not here (Debian: package qemu-system-x86)"
    return ""


class Qemu(Kernel):
    """A guest; the agent is its first process.

    Parameters
    ----------
    place : Path
        A folder with ``vmlinuz`` and ``modules``.
    memory : int
        Bytes that the guest has.
    limit : float
        Seconds that a call may take.

    Raises
    ------
    KernelMissingError
        With what is missing, and the package that brings it.
    """

    def __init__(self, place: Path, *, memory: int = 1 << 30, limit: float = 1800) -> None:
        if why := why_not():
            raise KernelMissingError(f"kernel qemu:{place.name}: {why}")
        super().__init__(f"qemu:{place.name}", limit)
        self.place, self.memory = place, memory
        self.top = "/run/mnt"

    def command(self) -> list[str]:
        """Run the emulation, whose first program becomes the agent."""
        first = self.folder / "initramfs"
        folders = [str(self.folder), str(self.images)]
        agent = self.agent(str(self.place))
        first.write_bytes(initramfs.packed(self.place / "modules", folders, agent))
        shared = [(TREE, "/", ",readonly=on,multidevs=remap")]
        shared += [(f"folder{number}", path, "") for number, path in enumerate(folders)]
        return [
            sys.executable, "-S", "-E", "-c", _GUARD, str(self.images), str(self.folder),
            QEMU, "-accel", "tcg", "-cpu", "max", "-m", f"{self.memory >> 20}M", "-smp", "1",
            "-nodefaults", "-display", "none", "-no-reboot",
            "-kernel", str(self.place / "vmlinuz"), "-initrd", str(first),
            "-append", f"console=hvc0 quiet panic=-1 rdinit={initramfs.INIT}",
            "-device", "virtio-serial-pci", "-chardev", "stdio,id=out,signal=off",
            "-device", "virtconsole,chardev=out",
            *(word for tag, path, more in shared for word in
              ("-virtfs", f"local,path={path},mount_tag={tag},security_model=none{more}")),
        ]  # fmt: skip

    def processor_ns(self) -> int:
        """Refuse: how long something takes in an emulation says nothing."""
        raise KernelFailedError(f"kernel {self.release}: times of an emulation are of no use")

    @contextmanager
    def attached(self, image: Path, *, read_only: bool) -> Iterator[str]:
        """Nothing to do: a mount makes a loop device, and an unmount takes it away."""
        yield str(image)
