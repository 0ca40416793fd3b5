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
import re
import resource
import select
import shutil
import stat
import struct
import subprocess
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import Died, HelpAsked, Program, UsageError, programs, say
from btrfs_model.scripts.special import SPECIAL
from btrfs_model.shell.state import UnknownError
from btrfs_model.shell.streams import KILLED, Endless, Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell
    from btrfs_model.shell.streams import Stream

FILTERS: Final = frozenset({
    "awk",
    "gawk", "mawk", "base64", "bc", "cmp", "column", "comm", "cut", "diff", "egrep", "expand",
    "expr", "fgrep", "fold", "grep", "hexdump", "iconv", "join", "nl", "od", "paste", "perl", "pr",
    "printenv",
    "rev", "sed", "shuf", "sort", "split", "strings", "sum", "tac", "tail", "tr", "tsort",
    "uniq", "xxd", "fmt", "numfmt", "cksum", "factor", "dc",
})  # fmt: skip
"""Programs that change bytes, and nothing else."""
_NAMES_NONE: Final = frozenset({"tr", "expr", "printenv", "factor", "numfmt"})
"""Filters of which no word names a file."""
_PROGRAM_FIRST: Final = {**dict.fromkeys(("grep", "egrep", "fgrep"), "efmABCDd"), "sed": "efl",
                         **dict.fromkeys(("awk", "gawk", "mawk"), "fFv")}  # fmt: skip
"""Filters whose first word is a program or a pattern, and their options with a value; ``-e`` and
``-f`` bring the program instead."""
_SECONDS: Final = 60
_MEMORY: Final = 4 << 30
_OUTPUT: Final = 1 << 30
_COPIED: Final = 1 << 30
_NOBODY: Final = 65534
_PIPE: Final = 1 << 16
_PATH: Final = "/usr/bin:/bin"


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
        except Died as death:
            return 128 + int(death.args[0])
        except UsageError as error:
            say(shell, f"{name}: {error}\n")
            return 1

    return called


def host_program(name: str) -> Program | None:
    """Return a filter of this machine; None where there is none."""
    if name not in FILTERS or shutil.which(name, path=_PATH) is None:
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
    program = shutil.which(name, path=_PATH)
    assert program is not None
    if (one := _endless(computer, shell, name, arguments)) is not None:
        running = _Running(computer, name, program, arguments, one, _environment(shell))
        output = shell.files[1]
        if isinstance(output, Pipe):
            return output.hand_over(running)
        output.write(running.read())
        shell.files[2].write(running.close())
        return running.status
    with tempfile.TemporaryDirectory(prefix="script-") as folder:
        named, reads = _files(name, arguments)
        words = [_copied(computer, folder, one) if at in named else one
                 for at, one in enumerate(arguments)]  # fmt: skip
        source = shell.files[0]
        if reads is None:
            reads = words == arguments or _reads_input(arguments)
        data = source.read() if reads else b""
        Path(folder).chmod(0o755)
        try:
            here = Path(folder + computer.cwd)
            here.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile() as given:
                given.write(data)
                given.seek(0)
                ran = subprocess.run(
                    [name, *words], executable=program, stdin=given, capture_output=True, cwd=here,
                    env=_environment(shell),
                    preexec_fn=_shut_in(folder), timeout=_SECONDS,
                )  # fmt: skip
                if not os.lseek(given.fileno(), 0, os.SEEK_CUR) and hasattr(source, "at"):
                    # it had files to read: what comes next on the input is for the next program
                    source.at -= len(data)
        except subprocess.TimeoutExpired:
            raise UnknownError(f"{name}: it ran for more than {_SECONDS} s") from None
        except subprocess.SubprocessError as error:
            raise UnknownError(f"{name}: {why_not() or error}") from error
        if name == "sed":
            _kept(computer, folder, named, arguments)
    hidden = folder.encode()
    shell.files[2].write(ran.stderr.replace(hidden, b""))
    shell.files[1].write(ran.stdout.replace(hidden, b""))
    return ran.returncode if ran.returncode >= 0 else 128 - ran.returncode


def _environment(shell: Shell) -> dict[str, str]:
    """Return what a filter's environment is: that of the script."""
    return {"LC_ALL": "C", "HOME": "/", "TZ": "UTC", **shell.environment(), "PATH": _PATH}


def _files(name: str, arguments: list[str]) -> tuple[Collection[int], bool | None]:
    """Return which words may name files, and whether the input is read.

    None: it is where none of the words is a file.
    """
    if name in _NAMES_NONE:
        return (), True
    if name not in _PROGRAM_FIRST:
        return range(len(arguments)), None
    valued, programs, inputs = _PROGRAM_FIRST[name], list[int](), list[int]()
    given, wants = False, ""
    for at, word in enumerate(arguments):
        if wants:
            programs += [at] if wants == "f" else []
            wants = ""
        elif word in ("--file", "--regexp", "--expression"):
            given, wants = True, word[2]
        elif word.startswith("--"):
            given |= word.startswith(("--file=", "--regexp=", "--expression="))
        elif word.startswith("-") and word != "-":
            letters = re.match(f"[^{valued}]*([{valued}]?)(.*)", word[1:], re.S)
            assert letters is not None
            given |= letters[1] in ("e", "f")
            wants = "" if letters[2] else letters[1]
        elif not given:
            given = True
        elif not (valued == _PROGRAM_FIRST["awk"] and re.match(r"[A-Za-z_]\w*=", word)):
            inputs.append(at)
    reads = not inputs or _reads_input([arguments[one] for one in inputs])
    return (*programs, *inputs), reads


def _endless(
    computer: Computer, shell: Shell, name: str, arguments: list[str]
) -> Stream | None:  # fmt: skip
    """Return what a filter reads where that has no end: a device, or its input."""
    places, reads = _files(name, arguments)
    named = [arguments[at] for at in places if arguments[at] in SPECIAL]
    streams = [stream for one in named if (stream := SPECIAL[one]()).endless]
    if streams:
        return streams[0]
    if reads is None:
        reads = _reads_input(arguments) or not any(
            (seen := computer.stat(one)) is not None and seen.is_file for one in arguments
        )
    return shell.files[0] if shell.files[0].endless and reads else None


class _Running(Endless):
    """A filter whose input has no end: it runs as far as what it writes is read.

    `source`: what it reads, by its standard input, or by a named pipe that stands for a device.
    """

    def __init__(
        self, computer: Computer, name: str, program: str, arguments: list[str], source: Stream,
        environment: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(name, self._written)
        self._source, self._waiting = source, b""
        self._folder = tempfile.TemporaryDirectory(prefix="script-")
        folder = self._folder.name
        Path(folder).chmod(0o755)
        pipe, words = Path(folder, "endless"), list(arguments)
        for at in _files(name, arguments)[0]:
            one = arguments[at]
            words[at] = (str(pipe) if one in SPECIAL and one != "/dev/null"
                         else _copied(computer, folder, one))  # fmt: skip
        named = str(pipe) in words
        self._names = {str(pipe).encode(): one.encode() for one in arguments if one in SPECIAL}
        self._names[folder.encode()] = b""
        if named:
            os.mkfifo(pipe, 0o666)
            pipe.chmod(0o666)
        here = Path(folder + computer.cwd)
        here.mkdir(parents=True, exist_ok=True)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - until close()
        try:
            self._process = subprocess.Popen(
                [name, *words], executable=program, cwd=here, env=environment,
                stdin=subprocess.DEVNULL if named else subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, bufsize=0, preexec_fn=_shut_in(folder),
            )  # fmt: skip
        except subprocess.SubprocessError as error:
            raise UnknownError(f"{name}: {why_not() or error}") from error
        weakref.finalize(self, _end, self._process)
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        if named:
            # with a reader of its own the pipe opens, whatever the filter does
            self._in = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
            weakref.finalize(self, os.close, self._in)
        else:
            assert self._process.stdin is not None
            self._in = self._process.stdin.fileno()
            os.set_blocking(self._in, False)
        self._feeds, self._ended = True, False

    def _written(self) -> bytes:
        """Give the filter what it reads until it writes something; nothing at its end."""
        until = time.monotonic() + _SECONDS
        while time.monotonic() < until:
            readable, writable, _ = select.select(
                [self._out], [self._in] if self._feeds else [], [], 1
            )
            if readable:
                data = os.read(self._out, _PIPE)
                self._ended = not data
                return self._shown(data)
            if writable:
                self._feed()
        raise UnknownError(f"{self.name}: it wrote nothing for {_SECONDS} s")

    def _feed(self) -> None:
        if not self._waiting:
            self._waiting = self._source.read(_PIPE)
        try:
            done = os.write(self._in, self._waiting) if self._waiting else 0
        except BrokenPipeError:
            done = 0
        self._waiting = self._waiting[done:]
        if not done:
            # nobody reads, or there is nothing more
            self._feeds = False
            if self._process.stdin is not None:
                self._process.stdin.close()

    def close(self) -> bytes:
        """Let the filter end as one that writes to nobody; return what it said."""
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                # what has written all ends by itself
                self._process.wait(None if self._ended else 0.1)
        _end(self._process)
        code = self._process.returncode
        self.status = code if code >= 0 else KILLED
        self._errors.seek(0)
        told = self._shown(self._errors.read())
        self._folder.cleanup()
        return told

    def _shown(self, data: bytes) -> bytes:
        """Return what is written with the names that the script knows."""
        for there, here in self._names.items():
            data = data.replace(there, here)
        return data


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for file in (process.stdin, process.stdout):
        if file is not None:
            file.close()


def _reads_input(arguments: list[str]) -> bool:
    return "-" in arguments or "/dev/stdin" in arguments


def _copied(computer: Computer, folder: str, word: str) -> str:
    """Copy a file that an argument names into the folder; return the word for it there."""
    if not word or word.startswith("-") or "\n" in word or word in ("/dev/null", "/dev/stdin"):
        return word
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


def _kept(computer: Computer, folder: str, named: Iterable[int], arguments: list[str]) -> None:
    """Write back what ``sed -i`` changed, and what it kept of that (``-i.bak``)."""
    found = [re.fullmatch(r"-[nErsuz]*i(.*)|--in-place=?(.*)", one) for one in arguments]
    option = next(filter(None, found), None)
    if option is None:
        return
    suffix = option[1] or option[2] or ""
    for at in named:
        told = arguments[at]
        for name in (told, told + suffix):
            path = Path(folder + computer.absolute(name))
            seen = computer.stat(name)
            if path.is_file() and (seen is None or path.read_bytes() != computer.read(name)):
                computer.write(name, path.read_bytes())


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
