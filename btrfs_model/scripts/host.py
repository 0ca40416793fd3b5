# SPDX-License-Identifier: GPL-2.0-only
"""Filters of this machine, shut in: bytes in, bytes out.

A filter sees copies of the files that its arguments name, in a folder of its own, and may read the
machine's libraries and programs. Landlock refuses all else (Linux 5.13 and later); a seccomp filter
refuses sockets; limits bound time, memory and processes.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import resource
import shutil
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import HelpAsked, Program, UsageError, programs, say
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from collections.abc import Callable

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

FILTERS: Final = frozenset({
    "awk",
    "gawk", "mawk", "base64", "bc", "cmp", "column", "comm", "cut", "diff", "egrep", "expand",
    "expr", "fgrep", "fold", "grep", "hexdump", "iconv", "join", "nl", "od", "paste", "perl", "pr",
    "printenv",
    "rev", "sed", "shuf", "sort", "split", "strings", "sum", "tac", "tail", "tr", "tsort",
    "uniq", "xxd", "fmt", "numfmt", "cksum", "factor", "dc",
})  # fmt: skip
"""Programs that change bytes, and nothing else."""
_SECONDS: Final = 60
_MEMORY: Final = 4 << 30
_OUTPUT: Final = 1 << 30
_COPIED: Final = 1 << 30
_NOBODY: Final = 65534


@functools.cache
def why_not() -> str:
    """Why no filter can be shut in here; empty where it can."""
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        try:
            subprocess.run(["/bin/true"], check=True, cwd=folder, preexec_fn=_shut_in(folder))
        except (OSError, subprocess.SubprocessError):
            return "no Landlock and seccomp here: filters of the machine cannot be shut in"
    return ""


def program(name: str) -> Program | None:
    """Return a program: Python, or a filter of this machine; None where it is not known."""
    found = programs().get(name) or host_program(name)
    return None if found is None else _told(name, found)


def _told(name: str, run: Program) -> Program:
    """Let a program say what is wrong with its options, and what ``--help`` shows."""

    def called(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        try:
            return run(computer, shell, arguments)
        except HelpAsked as asked:
            shell.write(str(asked))
            return 0
        except UsageError as error:
            say(shell, f"{name}: {error}\n")
            return 1

    return called


def host_program(name: str) -> Program | None:
    """Return a filter of this machine; None where there is none."""
    if name not in FILTERS or shutil.which(name, path="/usr/bin:/bin") is None:
        return None

    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        return run_host(computer, shell, name, arguments)

    return run


def run_host(computer: Computer, shell: Shell, name: str, arguments: list[str]) -> int:
    """Run a filter; what it writes goes to the files of the shell.

    Raises
    ------
    UnknownError
        When it cannot be shut in here, or runs for too long.
    """
    program = shutil.which(name, path="/usr/bin:/bin")
    assert program is not None
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        words = [_copied(computer, folder, one) for one in arguments]
        source = shell.files[0]
        data = b"" if words != arguments and not _reads_input(arguments) else source.read()
        Path(folder).chmod(0o755)
        try:
            here = Path(folder + computer.cwd)
            here.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile() as given:
                given.write(data)
                given.seek(0)
                ran = subprocess.run(
                    [name, *words], executable=program, stdin=given, capture_output=True, cwd=here,
                    env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/", "TZ": "UTC"},
                    preexec_fn=_shut_in(folder), timeout=_SECONDS,
                )  # fmt: skip
                if not os.lseek(given.fileno(), 0, os.SEEK_CUR) and hasattr(source, "at"):
                    # it had files to read: what comes next on the input is for the next program
                    source.at -= len(data)
        except subprocess.TimeoutExpired:
            raise UnknownError(f"{name}: it ran for more than {_SECONDS} s") from None
        except subprocess.SubprocessError as error:
            raise UnknownError(f"{name}: {why_not() or error}") from error
        _kept(computer, folder, words, arguments)
    hidden = folder.encode()
    shell.files[2].write(ran.stderr.replace(hidden, b""))
    shell.files[1].write(ran.stdout.replace(hidden, b""))
    return ran.returncode if ran.returncode >= 0 else 128 - ran.returncode


def _reads_input(arguments: list[str]) -> bool:
    return "-" in arguments or "/dev/stdin" in arguments


def _copied(computer: Computer, folder: str, word: str) -> str:
    """Copy a file that an argument names into the folder; return the word for it there."""
    if not word or word.startswith("-") or "\n" in word or word in ("/dev/null", "/dev/stdin"):
        return word
    if word in ("/dev/zero", "/dev/urandom", "/dev/random"):
        raise UnknownError(f"{word} has no end: read so many bytes of it (head -c, dd)")
    seen = computer.stat(word)
    if seen is not None and seen.is_dir and not word.startswith("/"):
        Path(folder + computer.absolute(word)).mkdir(parents=True, exist_ok=True)
    if seen is None or not (seen.is_file or stat.S_ISFIFO(seen.mode)):
        return word
    if seen.size > _COPIED:
        raise UnknownError(f"{word}: {seen.size} bytes are too many for a program of this machine")
    path = Path(folder + computer.absolute(word))
    path.parent.mkdir(parents=True, exist_ok=True)
    for one in path.parents:
        if one == Path(folder):
            break
        # `sed -i` makes a file beside it, as nobody
        one.chmod(0o777)
    path.write_bytes(computer.read(word))
    path.chmod(0o666)
    # a relative name stays one: what the program says of it is the same
    return str(path) if word.startswith("/") else os.path.relpath(path, folder + computer.cwd)


def _kept(computer: Computer, folder: str, words: list[str], arguments: list[str]) -> None:
    """Write back what ``sed -i`` changed."""
    if not any(one.startswith("-i") or one == "--in-place" for one in arguments):
        return
    for word, told in zip(words, arguments, strict=True):
        if word != told:
            path = Path(folder + computer.absolute(told))
            data = path.read_bytes()
            if data != computer.read(told):
                computer.open(told, "w").write(data)


# ------------------------------------------------------------------------------------ shut in --

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ: Final = 0b1101
"""Execute, read files, read directories."""
_WRITE: Final = 0b1111111111111 & ~_READ
_NO_NEW_PRIVS: Final = 38
_SET_SECCOMP: Final = 22
_SOCKETS: Final = {"x86_64": (0xC000003E, (41, 53, 101)), "aarch64": (0xC00000B7, (198, 199, 117))}
"""Architecture, and the numbers of socket, socketpair and ptrace."""
_PLACES: Final = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives",
                  "/dev/null", "/dev/zero")  # fmt: skip


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _landlock(folder: str) -> None:
    """Allow what a filter needs, and refuse all other files."""
    libc = _libc()
    attributes = ctypes.create_string_buffer(struct.pack("=Q", _READ | _WRITE))
    ruleset = libc.syscall(_CREATE_RULESET, attributes, 8, 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock")
    for place, access in [*((one, _READ) for one in _PLACES), (folder, _READ | _WRITE)]:
        try:
            number = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        if not stat.S_ISDIR(os.fstat(number).st_mode):
            access &= 0b111
        rule = ctypes.create_string_buffer(struct.pack("=Qi", access, number))
        if libc.syscall(_ADD_RULE, ruleset, 1, rule, 0):
            raise OSError(ctypes.get_errno(), "landlock")
        os.close(number)
    if libc.syscall(_RESTRICT_SELF, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock")
    os.close(ruleset)


def _no_sockets() -> None:
    """Refuse sockets by a seccomp filter."""
    known = _SOCKETS.get(platform.machine())
    if known is None:
        raise OSError(0, "seccomp")
    machine, numbers = known
    code = [(0x20, 0, 0, 4), (0x15, 1, 0, machine), (0x06, 0, 0, 0x80000000), (0x20, 0, 0, 0)]
    code += [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
    packed = b"".join(struct.pack("=HBBI", *one) for one in code)
    body = ctypes.create_string_buffer(packed)
    program = struct.pack("@HxxxxxxP", len(code), ctypes.addressof(body))
    if _libc().prctl(_SET_SECCOMP, 2, ctypes.create_string_buffer(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


def _shut_in(folder: str) -> Callable[[], None]:
    def before() -> None:
        libc = _libc()
        for what, most in (
            (resource.RLIMIT_CPU, _SECONDS),
            (resource.RLIMIT_FSIZE, _OUTPUT),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(what, (most, most))
        if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _landlock(folder)
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        _no_sockets()
        # last: until the filter begins, the memory is that of this process, whose filesystems may
        # be larger
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    return before
