# SPDX-License-Identifier: GPL-2.0-only
"""What a guest of qemu has in memory at first: modules, a Python, and one program for it."""

from __future__ import annotations

import gzip
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from btrfs_model.kernels.inside import boot

INIT: Final = "/init"
_LOADS: Final = """\
import sys
sys.path.append(sys.argv[1])
import boot
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
print(*{line.split()[-1] for line in open("/proc/self/maps") if "/" in line}, sep="\\n")
"""
"""Says which files a Python has read when it has all that the program needs."""
_PROGRAM: Final = """\
#!{python} -SEB
import sys
sys.path.append("/program")
from boot import main
main({folders!r}, {command!r})
"""


def packed(modules: Path, folders: Sequence[str], command: Sequence[str]) -> bytes:
    """Return an initramfs with the modules of a folder, in the order of their names.

    `folders` are shared for writing, `command` is what goes on in the machine's tree.
    """
    files = {str(path): path.read_bytes() for path in _of_python()}
    files["/program/boot.py"] = Path(boot.__file__).read_bytes()
    files |= {f"{boot.MODULES}/{path.name}": path.read_bytes() for path in modules.iterdir()}
    files[INIT] = _PROGRAM.format(python=_python(), folders=[*folders], command=[*command]).encode()
    return gzip.compress(cpio(files), 1)


def _python() -> str:
    """Return the program behind this Python, outside of any environment."""
    return str(Path(sys.executable).resolve())


def _of_python() -> Iterator[Path]:
    """Yield the files of a Python that is about to run the program."""
    command = [_python(), "-SEB", "-c", _LOADS, str(Path(boot.__file__).parent)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    for name in sorted(set(ran.stdout.split("\n"))):
        path = Path(name)
        if name.startswith("/") and path.is_file() and path.suffix != ".pyc":
            yield from _by_all_names(path)
    yield from (path for path in Path("/lib64").glob("ld-linux*") if path.is_file())


def _by_all_names(path: Path) -> Iterator[Path]:
    """Yield a file, and a library also by the names that lead to it: those are asked for."""
    yield path
    stem, library, _ = path.name.partition(".so")
    if library:
        yield from (other for other in path.parent.glob(f"{stem}.so*") if other.resolve() == path)


def cpio(files: Mapping[str, bytes]) -> bytes:
    """Pack files by path, with the folders above them, as the kernel unpacks them (newc)."""
    folders = {str(above): b"" for name in files for above in Path(name).parents}
    found = bytearray()
    everything = [*sorted(folders.items()), *files.items(), ("TRAILER!!!", b"")]
    for number, (name, data) in enumerate(everything, 1):
        mode = stat.S_IFDIR if name in folders else stat.S_IFREG
        path = os.fsencode(name.lstrip("/") or ".") + b"\0"
        fields = (number, mode | 0o755, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(path), 0)
        found += b"070701" + b"".join(b"%08x" % value for value in fields) + path
        found += bytes(-len(found) % 4) + data
        found += bytes(-len(found) % 4)
    return bytes(found)
