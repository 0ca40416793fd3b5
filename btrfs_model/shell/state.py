# SPDX-License-Identifier: GPL-2.0-only
"""What a shell knows: variables, functions, options, files; how control leaves a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.shell.streams import Files

if TYPE_CHECKING:
    from btrfs_model.shell.jobs import Job, Jobs
    from btrfs_model.shell.streams import Stream

Run: TypeAlias = "Callable[[Shell], int]"
"""A compiled command: it returns its exit status."""
Builtin: TypeAlias = "Callable[[Shell, list[str]], int]"
"""A command; its arguments begin after its name."""


class Array(dict[int, str]):
    """An indexed array."""


class Map(dict[str, str]):
    """An associative array."""


Value: TypeAlias = str | Array | Map


class ShellError(BtrfsModelError):
    """What ends a script: an expansion that fails, an unset variable under ``set -u``."""


class DiscardError(ShellError):
    """What ends a command of a script's outermost level, and no more: an expression is none."""


class UnknownError(ShellError):
    """A construct or an option of bash that is not known here.

    It is told to who runs the script, whatever the script makes of errors.
    """


class Leave(Exception):  # noqa: N818 - control flow, as StopIteration
    """Control leaves a command."""


class Break(Leave):
    """``break`` or ``continue`` of so many loops."""

    def __init__(self, loops: int, again: bool) -> None:
        super().__init__(loops)
        self.loops, self.again = loops, again


class Return(Leave):
    """``return`` from a function or a sourced file."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Exit(Leave):
    """``exit``, of the innermost subshell."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Killed(Leave):
    """A signal ends a background job."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class World(Protocol):
    """What a script acts on."""

    def open(self, path: str, mode: str) -> Stream:
        """Open a file: ``r``, ``w``, ``a`` or ``r+``."""

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file, as ``> path`` does."""

    def stat(self, path: str, follow: bool = True) -> Any:
        """Return what ``stat`` says of a path; None where there is nothing."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory; OSError where there is none."""

    def command(self, name: str) -> Builtin | None:
        """Return a program by its name."""

    def pipe(self, data: bytes) -> str:
        """Return the path of a file that is read once (``<( )``)."""

    def absolute(self, path: str) -> str:
        """Return a path from the root on."""

    def chdir(self, path: str) -> None:
        """Change the working directory."""

    umask: int
    """Mode bits that new files do not get."""

    cwd: str
    """The working directory."""
    jobs: Jobs

    def step(self, line: int) -> None:
        """Note that the command of a line begins; raise where a script has run for too long."""

    def share(self, commands: int) -> None:
        """Let background jobs go on after so many commands; 0: there are none."""

    def flush(self) -> None:
        """Do what was collected."""

    def clock(self) -> float:
        """Return the time, in seconds."""

    def region(self) -> None:
        """Do what was collected, and note that the script reads the clock."""

    def pass_time(self, seconds: float) -> None:
        """Let time go by."""


class Random:
    """``$RANDOM`` as bash 5.1 and later gives it (``lib/sh/random.c``): Park and Miller's."""

    def __init__(self, seed: int) -> None:
        self.value = seed & 0xFFFFFFFF
        self.last = 0

    def next(self) -> int:
        """Return the next number, which is not the one before it."""
        while True:
            value = self.value or 123459876
            high, low = divmod(value, 127773)
            value = 16807 * low - 2836 * high
            self.value = value + 0x7FFFFFFF if value < 0 else value
            found = (self.value >> 16 ^ self.value & 0xFFFF) & 0x7FFF
            if found != self.last:
                self.last = found
                return found


_AT_FIRST: Final = frozenset({"hashall", "braceexpand", "interactive_comments"})
_MOST: Final = 200
"""Calls of functions that may stand in each other."""


class Shell:
    """A shell; a subshell is a copy of it.

    Attributes
    ----------
    values : dict
        Variables by name.
    marks : dict
        Attributes of variables: letters of ``declare``.
    functions : dict
        Compiled bodies by name.
    arguments : list of str
        ``$1`` and on.
    status : int
        ``$?``.
    options : set of str
        Names of ``set -o`` and ``shopt``.
    files : dict
        Open files by number.
    builtins : mapping
        The shell's own commands.
    number : callable
        What the text of an expression comes to.
    """

    def __init__(
        self, world: World, files: Mapping[int, Stream], name: str,
        builtins: Mapping[str, Builtin], number: Callable[[Shell, str], int],
    ) -> None:  # fmt: skip
        self.world = world
        self.builtins, self.number = builtins, number
        self.files = Files(files)
        self.name = name
        self.values: dict[str, Value] = {}
        self.marks: dict[str, str] = {}
        self.functions: dict[str, tuple[Run, Any]] = {}
        self.arguments: list[str] = []
        self.status = 0
        self.pipe_status: int | list[int] = 0
        """``$PIPESTATUS``; a number where the last command was no pipe."""
        self.options = set(_AT_FIRST)
        self.traps: dict[str, str] = {}
        self.conditions = 0
        """Commands whose failure is looked at: ``set -e`` does not act in them."""
        self.depth = 0
        self.loops = 0
        self.level = 0
        self.line = 0
        self.job = ""
        self.jobs: dict[str, Job] = {}
        self.random = Random(1)
        self.began = world.clock()
        self.scopes: list[dict[str, tuple[Value | None, str | None]]] = []
        self.function_names: list[str] = []
        self.options_at = (1, 0)

    def copy(self) -> Shell:
        """Return a subshell."""
        new: Shell = Shell.__new__(Shell)
        new.__dict__.update(self.__dict__)
        new.values = {name: value if isinstance(value, str) else type(value)(value)  # type: ignore[arg-type]
                      for name, value in self.values.items()}  # fmt: skip
        new.marks, new.functions = dict(self.marks), dict(self.functions)
        new.files, new.options = Files(self.files), set(self.options)
        new.arguments, new.traps = list(self.arguments), {}
        new.scopes = [dict(one) for one in self.scopes]
        new.function_names = list(self.function_names)
        new.jobs = {}
        new.level = self.level + 1
        return new

    def started(self, name: str, arguments: list[str]) -> Shell:
        """Return a shell that this one starts: it has exported variables, and the open files."""
        new = self.copy()
        new.name, new.arguments = name, arguments
        new.values = {key: value for key, value in new.values.items()
                      if "x" in new.marks.get(key, "")}  # fmt: skip
        new.marks = dict.fromkeys(new.values, "x")
        new.functions, new.scopes, new.function_names = {}, [], []
        new.options, new.options_at = set(_AT_FIRST), (1, 0)
        new.conditions = new.loops = new.depth = new.status = 0
        return new

    # ------------------------------------------------------------------------------ files --

    def write(self, text: str) -> None:
        """Write to the standard output."""
        self.files[1].write(text.encode("utf-8", "surrogateescape"))

    def complain(self, text: str) -> None:
        """Write a line to the standard error, as bash begins it."""
        self.files[2].write(
            f"{self.name}: line {self.line}: {text}\n".encode("utf-8", "surrogateescape")
        )

    # -------------------------------------------------------------------------- variables --

    def get(self, name: str) -> str | None:
        """Return a variable's value; of an array its element 0."""
        value = self.values.get(name)
        if value.__class__ is str:
            return value
        if value is None:
            special = _SPECIAL.get(name)
            return special(self) if special else None
        if "n" in self.marks.get(name, ""):
            return None
        return value.get(0) if isinstance(value, Array) else value.get("0")  # type: ignore[union-attr]

    def array(self, name: str) -> Array | Map | None:
        """Return a variable as an array."""
        name = self.referred(name)
        value = self.values.get(name)
        if isinstance(value, str):
            return Array({0: value})
        if value is None:
            if name == "PIPESTATUS":
                found = self.pipe_status
                return Array(enumerate(map(str, [found] if isinstance(found, int) else found)))
            if name == "FUNCNAME" and self.function_names:
                return Array(enumerate([*reversed(self.function_names), "main"]))
            if name == "BASH_SOURCE":
                return Array({0: self.name})
            if name == "BASH_LINENO":
                return Array({0: str(self.line)})
            special = self.get(name) if name in _SPECIAL else None
            if special is not None:
                return Array({0: special})
        return value

    def referred(self, name: str) -> str:
        """Follow ``declare -n``."""
        for _ in range(10):
            if "n" not in self.marks.get(name, ""):
                break
            name = str(self.values.get(name, name))
        return name

    def set(self, name: str, value: str) -> None:
        """Assign; what an attribute makes of it is assigned.

        Raises
        ------
        ShellError
            When it is read only.
        """
        if name in self.marks:
            name = self.referred(name)
            value = self.marked(name, value)
        old = self.values.get(name)
        if old is None or old.__class__ is str:
            self.values[name] = value
            if name == "RANDOM":
                del self.values[name]
                self.random = Random(int(value or 0) if value.lstrip("-").isdigit() else 0)
            if name == "SECONDS":
                del self.values[name]
                self.began = self.world.clock() - float(value or 0)
            if "allexport" in self.options:
                self.mark(name, "x")
        elif isinstance(old, Array):
            old[0] = value
        else:
            old["0"] = value  # type: ignore[index]

    def marked(self, name: str, value: str) -> str:
        """Return what a variable with attributes keeps of a value."""
        marks = self.marks.get(name, "")
        if "r" in marks:
            raise DiscardError(f"{name}: readonly variable")
        if "i" in marks:
            value = str(self.number(self, value))
        if "l" in marks:
            value = value.lower()
        if "u" in marks:
            value = value.upper()
        return value

    def mark(self, name: str, letters: str) -> None:
        """Give a variable attributes."""
        old = self.marks.get(name, "")
        self.marks[name] = old + "".join(one for one in letters if one not in old)

    def unset(self, name: str) -> None:
        """Forget a variable."""
        name = self.referred(name)
        if "r" in self.marks.get(name, ""):
            raise ShellError(f"{name}: cannot unset: readonly variable")
        self.values.pop(name, None)
        self.marks.pop(name, None)

    def local(self, name: str) -> None:
        """Keep a variable for the end of the function."""
        scope = self.scopes[-1]
        if name not in scope:
            scope[name] = (self.values.pop(name, None), self.marks.pop(name, None))

    @contextmanager
    def scope(self, name: str, arguments: list[str]) -> Iterator[None]:
        """Call a function: its arguments, and variables of its own."""
        if self.depth >= _MOST:
            raise ShellError(f"{name}: maximum function nesting level exceeded ({_MOST})")
        outer, self.arguments = self.arguments, arguments
        loops, self.loops = self.loops, 0
        kept: dict[str, tuple[Value | None, str | None]] = {}
        self.scopes.append(kept)
        self.function_names.append(name)
        self.depth += 1
        # a function has the trap of ERR that it sets itself
        trap = None if "errtrace" in self.options else self.traps.pop("ERR", None)
        try:
            yield
        finally:
            if trap is not None:
                self.traps.setdefault("ERR", trap)
            self.depth -= 1
            self.function_names.pop()
            self.scopes.pop()
            self.arguments, self.loops = outer, loops
            for one, (value, marks) in kept.items():
                self.values.pop(one, None)
                self.marks.pop(one, None)
                if value is not None:
                    self.values[one] = value
                if marks is not None:
                    self.marks[one] = marks

    def environment(self) -> dict[str, str]:
        """Return what programs see."""
        return {name: value for name, value in self.values.items()
                if isinstance(value, str) and "x" in self.marks.get(name, "")}  # fmt: skip

    # ---------------------------------------------------------------------------- options --

    @property
    def flags(self) -> str:
        """``$-``."""
        found = "".join(letter for letter, name in LETTERS.items() if name in self.options)
        return found + "B"


LETTERS: Final = {"e": "errexit", "f": "noglob", "h": "hashall", "n": "noexec", "u": "nounset",
                  "v": "verbose", "x": "xtrace", "C": "noclobber", "a": "allexport",
                  "E": "errtrace", "m": "monitor", "b": "notify", "T": "functrace",
                  "P": "physical"}  # fmt: skip
"""Options of ``set`` that have a letter."""


def _read_clock(shell: Shell) -> float:
    shell.world.region()
    return shell.world.clock()


def _seconds(shell: Shell) -> int:
    """Return ``$SECONDS``: loops ask for it in each turn, and time nothing by it."""
    shell.world.flush()
    return int(shell.world.clock() - shell.began)


_SPECIAL: Final[dict[str, Callable[[Shell], str | None]]] = {
    "RANDOM": lambda shell: str(shell.random.next()),
    "SECONDS": lambda shell: str(_seconds(shell)),
    "EPOCHSECONDS": lambda shell: str(int(_read_clock(shell))),
    "EPOCHREALTIME": lambda shell: f"{_read_clock(shell):.6f}",
    "LINENO": lambda shell: str(shell.line),
    "PWD": lambda shell: shell.world.cwd,
    "BASHPID": lambda shell: str(1000 + shell.level),
    "BASH_SUBSHELL": lambda shell: str(shell.level),
    "FUNCNAME": lambda shell: shell.function_names[-1] if shell.function_names else None,
    "PIPESTATUS": lambda shell: str(
        shell.pipe_status if isinstance(shell.pipe_status, int) else shell.pipe_status[0]
    ),
    "BASH_SOURCE": lambda shell: shell.name,
    "SHELLOPTS": lambda shell: ":".join(sorted(shell.options)),
}
