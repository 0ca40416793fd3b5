# SPDX-License-Identifier: GPL-2.0-only
"""A script of the user, before a kernel runs it: who interprets it, and whether it can be read."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from btrfs_model.base.errors import KernelFailedError, KernelMissingError

_SHELL = "bash"
_COMPILE = "import sys; compile(open(sys.argv[1], 'rb').read(), sys.argv[1], 'exec')"
_READ = ("-n",)
_CHECKS = {
    **dict.fromkeys(("ash", "bash", "dash", "ksh", "sh", "zsh"), _READ),
    "python": ("-c", _COMPILE),
}
"""How interpreters look at a script without running it."""


def command_of(script: Path) -> list[str]:
    """Return what runs a script: the interpreter that its first line names, or bash.

    Raises
    ------
    KernelMissingError
        When there is no such interpreter.
    """
    with script.open("rb") as file:
        first = file.readline().decode(errors="replace").strip()
    # as the kernel takes it: a program, and all the rest as one argument
    found = first.removeprefix("#!").split(maxsplit=1) if first.startswith("#!") else [_SHELL]
    program = shutil.which(found[0]) if found else None
    if program is None:
        raise KernelMissingError(f"{script}: its first line names no program: {first}")
    return [program, *found[1:], str(script)]


def check(script: Path) -> None:
    """Let its interpreter look at a script, where it can without running it.

    Raises
    ------
    KernelMissingError, KernelFailedError
        With the first line that it says.
    """
    program, *options, path = command_of(script)
    words = options[0].split() if options else []
    if Path(program).name == "env":
        program = next((one for one in words if one[0] != "-" and "=" not in one), "")
        if shutil.which(program) is None:
            raise KernelMissingError(f"{script}: env is to look for no program: {options}")
    looks = _CHECKS.get(Path(program).name.rstrip("0123456789."))
    if looks is None:
        return
    ran = subprocess.run([program, *looks, path], capture_output=True, text=True, errors="replace",
                         stdin=subprocess.DEVNULL)  # fmt: skip
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"status {ran.returncode}"]
        line = said[0] if looks == _READ else _of_python(said)
        raise KernelFailedError(line if path in line else f"{path}: {line}")


def _of_python(said: list[str]) -> str:
    """Return in one line where Python says that an error is, and which."""
    place = next((line.strip() for line in reversed(said) if line.startswith("  File ")), "")
    return f"{place.partition(', ')[2]}: {said[-1]}" if place else said[-1]
