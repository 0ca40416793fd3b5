# SPDX-License-Identifier: GPL-2.0-only
"""User-Mode Linux: a second kernel, which needs no root.

The guest is that of Debian's package ``user-mode-linux``, the ``usr/bin/linux.uml`` of such a
package of another release, unpacked with ``dpkg -x`` into a folder, or one built from a kernel's
tree with btrfs in it. A libc6 unpacked into the same folder is used for it: a newer kernel wants a
newer one than this machine's. The guest's root is the machine's own tree (hostfs), with the rights
of whoever runs it. A boot takes a few seconds.
"""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError, KernelMissingError
from btrfs_model.behaviour import version
from btrfs_model.kernels import mconsole
from btrfs_model.kernels.inside.mounts import run
from btrfs_model.kernels.session import SHM, Kernel, has_room

DEBIAN = Path("/usr/bin/linux.uml")
# The guest has a /dev of its own, and is to find images in memory where the machine has them.
_INIT = """\
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /run
mount -t tmpfs none /var/lib
[ -c /dev/null ] || mount -t devtmpfs none /dev
mkdir -p {shm} && mount -t hostfs -o {shm} none {shm}
{devices}
mknod {terminal} c 4 0
stty raw -echo
exec {agent} <{terminal} >{terminal} 2>&1
"""
_UNITS = "bcdefghijklmnop"
"""Letters of the block devices that images become; there are no more, and a is the guest's own."""
_DEVICE = "/run/ubd{}"
# Not /dev/console, from which only who waits at that moment reads that nobody asks any more.
_TERMINAL = "/run/tty0"
# Linux 5.10 panics when a block device is removed: there each image becomes another one, and the
# guest is started again after the last.
_REMOVES = (6, 1)
_LOOKS = 500
_XSTATE = Path(__file__).parent / "uml_xstate.c"
_LOADER = "ld-linux-x86-64.so.2"
_INTERPRETER = b"/lib64/" + _LOADER.encode() + b"\0"


def _modules(binary: Path) -> Path:
    return binary.parent.parent / "lib/uml/modules"


def _libraries(binary: Path) -> Path | None:
    """Where a libc is that was unpacked beside a kernel; None: it has this machine's."""
    folder = binary.parent.parent / "lib/x86_64-linux-gnu"
    return folder if binary != DEBIAN and (folder / _LOADER).exists() else None


def why_not(binary: Path = DEBIAN) -> str:
    """Why there is no guest of a binary here; empty when there can be one."""
    if platform.machine() != "x86_64":
        return f"User-Mode Linux is for x86_64, this is {platform.machine()}"
    if not binary.is_file():
        return f"{binary} is not here (Debian: package user-mode-linux)"
    if not os.access(binary, os.X_OK):
        return f"{binary} is not a program"
    if _has_large_registers() and not shutil.which("cc"):
        return "User-Mode Linux does not know this processor's AMX, and there is no cc to help it"
    if not _libraries(binary) and (lacks := _lacking_libc(binary)):
        return f"{binary}: {lacks} (unpack its release's package libc6 into the same folder)"
    return ""


@functools.cache
def _lacking_libc(binary: Path) -> str:
    """Say what this machine's C library lacks for a binary."""
    ran = subprocess.run(["ldd", str(binary)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True)  # fmt: skip
    return next((line.split("libc.so.6: ")[-1].split(" (required")[0]
                 for line in ran.stdout.splitlines() if "not found" in line), "")  # fmt: skip


@functools.cache
def _has_large_registers() -> bool:
    """Whether the state of a process on this processor is larger than the guest thinks."""
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def _takes_guests(folder: Path, memory: int) -> bool:
    """Whether several guests can have their memory in a folder; they run code that is in it."""
    return has_room(folder, 4 * memory) and not os.statvfs(folder).f_flag & os.ST_NOEXEC


def _detached(console: Path, unit: str) -> bool:
    """Whether a guest let a block device go, which something may still look at for a moment."""
    for _ in range(_LOOKS):
        try:
            mconsole.ask(console, f"remove ubd{unit}")
            return True
        except KernelFailedError:
            time.sleep(0.01)
    return False


class Uml(Kernel):
    """A guest; the agent is its first process.

    Parameters
    ----------
    binary : Path
        The program that is the kernel.
    memory : int
        Bytes that the guest has.
    limit : float
        Seconds that a call may take.

    Raises
    ------
    KernelMissingError
        With what is missing, and the package that brings it.
    """

    def __init__(
        self, binary: str | Path = DEBIAN, *, memory: int = 512 << 20, limit: float = 300
    ) -> None:
        self.binary = Path(binary).resolve()
        self.memory = memory
        if why := why_not(self.binary):
            raise KernelMissingError(f"kernel {binary}: {why}")
        super().__init__(str(self.binary), limit)
        self.top = "/run/mnt"

    def command(self) -> list[str]:
        """Run a guest whose first process becomes the agent."""
        self._free, self._attached = list(_UNITS), set[Path]()
        nodes = [
            f"mknod {_DEVICE.format(unit)} b 98 {16 * number}"
            for number, unit in enumerate(_UNITS, start=1)
        ]
        init = self.folder / "init"
        agent = shlex.join(self.agent(str(_modules(self.binary))))
        init.write_text(
            _INIT.format(shm=SHM, devices="\n".join(nodes), terminal=_TERMINAL, agent=agent)
        )
        # the guest is started in the folder: the name of its console's socket is a short one
        return [
            self._program(), f"mem={self.memory >> 20}M",
            "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw",
            "uml_dir=.", "umid=guest", "con=null", "con0=fd:0,fd:1", "quiet",
            "init=/bin/sh", "--", str(init),
        ]  # fmt: skip

    def processors(self) -> set[int]:
        """Choose one: each call of the guest's programs is a switch between processes.

        Between two processors of a virtual machine one of which sleeps, it takes seven times as
        long. Guests of processes that started one after the other have different ones.
        """
        there = sorted(os.sched_getaffinity(0))
        return {there[os.getpid() % len(there)]}

    def environment(self) -> dict[str, str]:
        """Where the guest's memory is, which is a file, and its libraries."""
        place = SHM if _takes_guests(SHM, self.memory) else self.folder
        added = {"TMPDIR": str(place)}
        if libraries := _libraries(self.binary):
            added["LD_LIBRARY_PATH"] = str(libraries)
        if _has_large_registers():
            library = self.folder / "xstate.so"
            command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_XSTATE)]
            if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
                raise KernelMissingError(f"kernel {self.binary}: cc cannot compile {_XSTATE}")
            added["LD_PRELOAD"] = str(library)
        return added

    @contextmanager
    def attached(self, image: Path, *, read_only: bool) -> Iterator[str]:
        """Attach as a block device of the guest, whose requests the machine's kernel serves.

        Raises
        ------
        KernelFailedError
            When the image is attached already: two devices would write to it.
        """
        self.start()
        image = image.resolve()
        if image in self._attached:
            raise KernelFailedError(f"{image} is attached already")
        socket = self.folder / "guest/mconsole"
        flags = "rd" if read_only else "d"  # d: a comma in the name is one
        unit = self._free.pop(0)
        mconsole.ask(socket, f"config ubd{unit}{flags}={image}")
        self._attached.add(image)
        try:
            yield _DEVICE.format(unit)
        finally:
            self._attached.discard(image)
            if self.runs and not self._lets_go(socket, unit):
                self.stop()

    def _lets_go(self, console: Path, unit: str) -> bool:
        """Whether the guest knows nothing of an image any more; it need not be started again."""
        if version(self.release) >= _REMOVES:
            self._free.insert(0, unit)
            return _detached(console, unit)
        if not self._free:
            return False
        try:  # another image may have its fsid; a device that is mounted is not forgotten
            self.call(run, "btrfs", "device", "scan", "--forget", _DEVICE.format(unit))
        except KernelFailedError:
            return False
        return True

    def _program(self) -> str:
        """Return the binary; one with its own libc is told of its loader, by a relative path."""
        libraries = _libraries(self.binary)
        if libraries is None:
            return str(self.binary)
        program, loader = self.folder / "linux", self.folder / "ld.so"
        code = self.binary.read_bytes()
        name = loader.name.encode().ljust(len(_INTERPRETER), b"\0")
        program.write_bytes(code.replace(_INTERPRETER, name, 1))
        program.chmod(0o755)
        loader.unlink(missing_ok=True)
        loader.symlink_to(libraries / _LOADER)
        return str(program)
