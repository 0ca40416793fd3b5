# SPDX-License-Identifier: GPL-2.0-only
"""The end of a :class:`~btrfs_model.kernels.session.Kernel` that runs on the kernel that is asked.

With the arguments FOLDER, IMAGES it calls functions: for each number on its standard input that of
``FOLDER/job-NUMBER.json``; it writes ``FOLDER/answer-NUMBER.json`` and prints the number. As the
first process of a guest (FOLDER, IMAGES, MODULES) it loads the driver of loop devices before. When
there is nobody left who asks it removes both folders, and powers the guest off.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import lzma
import os
import shutil
import sys
import traceback
from operator import attrgetter
from pathlib import Path
from typing import Any

from btrfs_model.kernels.inside.clock import MARK

_BYTES = "bytes as latin-1"
_INIT_MODULE = 175
_POWER_OFF = 0x4321FEDC


def load_loop_driver(modules: Path) -> None:
    """Load the driver of loop devices where it is a module of the guest's kernel."""
    for module in (modules / os.uname().release / "kernel/drivers/block").glob("loop.ko*"):
        code = module.read_bytes()
        if module.suffix == ".xz":
            code = lzma.decompress(code)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(_INIT_MODULE, code, ctypes.c_ulong(len(code)), b""):
            raise OSError(ctypes.get_errno(), "init_module", str(module))


def plain(value: Any) -> Any:
    """Write what JSON has no way for: bytes, as a string of as many characters."""
    if isinstance(value, bytes):
        return {_BYTES: value.decode("latin-1")}
    raise TypeError(f"{type(value).__name__} does not go into a kernel or out of it")


def restored(members: dict[str, Any]) -> Any:
    """Read what :func:`plain` wrote."""
    return members[_BYTES].encode("latin-1") if _BYTES in members else members


def answer_to(job: dict[str, Any]) -> str:
    """Call a function; what went wrong is an answer too."""
    try:
        if job["root"] not in sys.path:
            sys.path.append(job["root"])
        function = attrgetter(job["function"])(importlib.import_module(job["module"]))
        return json.dumps({"value": function(*job["arguments"], **job["named"])}, default=plain)
    except Exception as error:
        said = " ".join(str(error).split()) or repr(error)
        return json.dumps({"failed": said, "traceback": traceback.format_exc()})


def main() -> None:
    """Answer until there are no more questions."""
    folder, images, *modules = map(Path, sys.argv[1:])
    if modules:
        load_loop_driver(modules[0])
    print(f"{MARK}ready {os.uname().release}", flush=True)
    for line in iter(sys.stdin.readline, ""):  # a call may read lines too
        number = line.strip()
        job = json.loads((folder / f"job-{number}.json").read_text(), object_hook=restored)
        (folder / f"answer-{number}.json").write_text(answer_to(job))
        try:
            print(f"{MARK}{number}", flush=True)
        except OSError:  # nobody reads it
            break
    for place in (folder, images):
        shutil.rmtree(place, ignore_errors=True)
    if modules:
        ctypes.CDLL(None).reboot(_POWER_OFF)
