# SPDX-License-Identifier: GPL-2.0-only
"""Programs of coreutils that are about attributes, times and words, and what runs others."""

from __future__ import annotations

import datetime
import posixpath
import re
from typing import TYPE_CHECKING, Final

from btrfs_model.scripts.program import Program, options, say
from btrfs_model.scripts.programs.names import each
from btrfs_model.shell.state import UnknownError

if TYPE_CHECKING:
    from btrfs_model.scripts.computer import Computer
    from btrfs_model.shell.state import Shell

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of a unit."""
_RUNNERS: Final = {"sudo": ("EHnS", "u"), "nice": ("", "n"), "ionice": ("t", "cnpPu"),
                   "nohup": ("", ""), "setsid": ("cfw", ""), "stdbuf": ("", "ioe")}  # fmt: skip
"""Programs that run another, with their options."""


def _touch(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, paths = options(arguments, "acm", "dtr", long=("date=", "no-create", "reference="),
                           program_name="touch")  # fmt: skip
    when = None
    if "t" in given or "r" in given or "reference" in given:
        raise UnknownError("touch: -t and -r are not known")
    told = given.get("d", given.get("date"))
    if told is not None:
        when = int(moment(told) * 1e9)

    def touch(path: str) -> None:
        if computer.stat(path) is None:
            if "c" in given or "no-create" in given:
                return
            computer.put(path, b"")
            if when is None:
                return
        found = computer.place(path)
        if found is None:
            computer.tree.find(path).mtime = computer.time_ns() if when is None else when
            return
        mounted, inside = found
        mounted.may_write(path)
        fs = mounted.fs
        at = fs.now() if when is None else when
        with computer.timed("utimes"):
            fs.utimes(mounted.inside(inside), at, at)

    return each(computer, shell, paths, touch, "touch: cannot touch '{}'")


def moment(text: str) -> float:
    """Read a time: ``@seconds`` or a date.

    Raises
    ------
    UnknownError
        For a form that is not known.
    """
    if text.startswith("@"):
        return float(text[1:])
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UnknownError(f"date: {text!r}: this form of a date is not known") from None
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()


def _seq(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    separator, width = "\n", False
    words = list(arguments)
    while words and words[0].startswith("-") and not re.fullmatch(r"-\d.*", words[0]):
        option = words.pop(0)
        if option == "-w":
            width = True
        elif option.startswith("-s"):
            separator = option[2:] or words.pop(0)
        else:
            raise UnknownError(f"seq: {option}: this option is not known")
    try:
        numbers = [int(one, 16 if "x" in one.lower() else 10) for one in words]
    except ValueError:
        raise UnknownError(f"seq: {' '.join(words)}: only whole numbers are known") from None
    if not 1 <= len(numbers) <= 3:
        raise UnknownError(f"seq: {len(numbers)} numbers: one, two or three are known")
    first, step, last = {1: (1, 1, *numbers), 2: (numbers[0], 1, numbers[-1]),
                         3: tuple(numbers)}[len(numbers)]  # fmt: skip
    found = range(first, last + (1 if step > 0 else -1), step)
    if found:
        digits = max(len(str(found[0])), len(str(found[-1]))) if width else 0
        shell.write(separator.join(f"{one:0{digits}d}" for one in found) + "\n")
    return 0


def _date(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    given, words = options(arguments, "uR", "d", long=("date=", "utc", "iso-8601"),
                           program_name="date")  # fmt: skip
    computer.flush()
    told = given.get("d", given.get("date"))
    seconds = computer.clock() if told is None or told == "now" else moment(told)
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    form = words[0] if words else "+%a %b %e %H:%M:%S UTC %Y"
    if not form.startswith("+"):
        raise UnknownError(f"date: {form}: the clock cannot be set")
    nanoseconds = round((seconds - int(seconds)) * 1e9)

    def digits(found: re.Match[str]) -> str:
        size = int(found[1] or 9)
        return f"{nanoseconds:09d}"[:size]

    text = re.sub(r"%([1-9]?)N", digits, form[1:]).replace("%s", str(int(seconds)))
    shell.write(when.strftime(text) + "\n")
    computer.region()
    return 0


def _sleep(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    for one in arguments:
        found = re.fullmatch(r"(\d*\.?\d+)([smhd]?)", one)
        if not found:
            say(shell, f"sleep: invalid time interval '{one}'\n")
            return 1
        computer.jobs.sleep(float(found[1]) * _UNITS[found[2]])
    return 0


def _basename(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    given, words = options(arguments, "az", "s", program_name="basename")
    suffix = given.get("s", words[1] if len(words) > 1 and "a" not in given else "")
    for one in words if "a" in given or "s" in given else words[:1]:
        name = posixpath.basename(one.rstrip("/")) or "/"
        shell.write((name.removesuffix(suffix) if name != suffix else name) + "\n")
    return 0


def _dirname(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    for one in arguments:
        shell.write(
            (posixpath.dirname(one.rstrip("/")) or ("/" if one.startswith("/") else ".")) + "\n"
        )
    return 0


def _nothing(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Do what changes nothing here."""
    del computer, shell, arguments
    return 0


def _constant(text: str) -> Program:
    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        del computer, arguments
        shell.write(text + "\n")
        return 0

    return run


def _uname(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    del computer
    letters = "".join(arguments).replace("-", "") or "s"
    known = {
        "s": "Linux",
        "n": "model",
        "r": "6.18.0",
        "m": "x86_64",
        "a": "Linux model 6.18.0 x86_64",
    }
    shell.write(" ".join(known[one] for one in letters if one in known) + "\n")
    return 0


def _time(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """``/usr/bin/time``."""
    from btrfs_model.shell.simple import call

    given, words = options(arguments, "pv", "of", program_name="time", mixed=False)
    began = computer.clock()
    status = call(shell, words)
    took = computer.clock() - began
    form = given.get("f")
    if form is None:
        say(shell, f"real {took:.2f}\nuser 0.00\nsys 0.00\n" if "p" in given else
            f"0.00user 0.00system 0:{took:05.2f}elapsed 0%CPU\n")  # fmt: skip
    else:
        told = re.sub("%(.)", lambda one: {"e": f"{took:.2f}", "E": f"0:{took:05.2f}", "U": "0.00",
                                           "S": "0.00", "M": "0", "P": "0%"}.get(one[1], one[0]),
                      form)  # fmt: skip
        say(shell, told.replace("\\n", "\n") + "\n")
    return status


def _env(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    from btrfs_model.shell.simple import call

    del computer
    words = list(arguments)
    inner = shell.copy()
    while words and "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        inner.values[name] = value
        inner.mark(name, "x")
    try:
        if words:
            return call(inner, words)
        for name, value in inner.environment().items():
            shell.write(f"{name}={value}\n")
        return 0
    finally:
        inner.files.close()


def _runner(name: str, flags: str, valued: str) -> Program:
    """Return a program that runs another, in a way that makes no difference here."""

    def run(computer: Computer, shell: Shell, arguments: list[str]) -> int:
        given, words = options(arguments, flags, valued, program_name=name, mixed=False)
        if given.get("u", "root") != "root" or not (words or {"p", "P"} & set(given)):
            raise UnknownError(f"{name} {' '.join(arguments)}: say a command, for root")
        return _env(computer, shell, words) if words else 0

    return run


def _timeout(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    """Run a command that ends in time; where it does not, that is said."""
    given, words = options(arguments, "fpv", "ks", program_name="timeout", mixed=False)
    found = re.fullmatch(r"(\d*\.?\d+)([smhd]?)", words[0]) if words else None
    if found is None or len(words) < 2:
        say(shell, f"timeout: invalid time interval '{''.join(words[:1])}'\n")
        return 125
    del given
    began = computer.clock()
    status = _env(computer, shell, words[1:])
    if computer.clock() - began > float(found[1]) * _UNITS[found[2]] > 0:
        raise UnknownError(f"timeout {words[0]}: the command takes longer, and is not ended")
    return status


def _xargs(computer: Computer, shell: Shell, arguments: list[str]) -> int:
    from btrfs_model.shell.simple import call

    del computer
    given, words = options(arguments, "0rt", "nIdP", program_name="xargs", mixed=False)
    text = shell.files[0].read().decode("utf-8", "surrogateescape")
    if "0" in given:
        items = [one for one in text.split("\0") if one]
    elif "I" in given or "d" in given:
        items = [one for one in text.split("\n") if one]
    else:
        items = text.split()
    command = words or ["echo"]
    if "I" in given:
        calls = [[one.replace(given["I"], item) for one in command] for item in items]
    else:
        size = int(given.get("n", len(items) or 1))
        calls = [[*command, *items[at : at + size]] for at in range(0, len(items), size)]
        if not items and "r" not in given:
            calls = [command]
    return 123 if any(call(shell, one) for one in calls) else 0


PROGRAMS: Final[dict[str, Program]] = {
    "touch": _touch, "seq": _seq, "date": _date, "sleep": _sleep, "basename": _basename,
    "dirname": _dirname,
    "nproc": _constant("4"), "uname": _uname, "whoami": _constant("root"),
    "hostname": _constant("model"), "id": _constant("0"), "time": _time, "env": _env,
    "xargs": _xargs, "udevadm": _nothing, "modprobe": _nothing, "renice": _nothing,
    "clear": _nothing, "timeout": _timeout,
    **{name: _runner(name, *letters) for name, letters in _RUNNERS.items()},
}  # fmt: skip
