# SPDX-License-Identifier: GPL-2.0-only
"""Statements: each becomes a closure that runs in a shell and returns its exit status."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Final

from btrfs_model.shell.expansion import words
from btrfs_model.shell.jobs import SIGNALS
from btrfs_model.shell.parse import Node, parse
from btrfs_model.shell.redirections import Redirection, redirections
from btrfs_model.shell.simple import simple
from btrfs_model.shell.state import (
    Break,
    DiscardError,
    Exit,
    Killed,
    Leave,
    Return,
    Shell,
    ShellError,
    UnknownError,
)
from btrfs_model.shell.streams import KILLED, Pipe, Replaced, Sink, Source

if TYPE_CHECKING:
    from btrfs_model.shell.expansion.words import Emit
    from btrfs_model.shell.state import Run


def script(text: str) -> Run:
    """Compile a script: what is read at once ends alone where an expression of it is none.

    Raises
    ------
    ShellSyntaxError
        When bash would refuse it.
    UnknownError
        When it has a construct that is not known here.
    """
    units: list[list[Node]] = []
    end = 0
    for one in parse(text).get("Stmts", []):
        if line_of(one) != end or not units:
            units.append([])
        units[-1].append(one)
        end = int((one.get("End") or {}).get("Line", 0))
    runs = [sequence(unit) for unit in units]

    def run(shell: Shell) -> int:
        status = 0
        for one in runs:
            try:
                status = one(shell)
            except DiscardError as error:
                if shell.level or shell.function_names:
                    raise
                shell.complain(str(error))
                shell.conditions = 0
                shell.status = status = 1
        return status

    return run


def sequence(statements: Sequence[Node]) -> Run:
    """Compile statements that run one after the other."""
    runs = [statement(one) for one in statements]
    if len(runs) == 1:
        return runs[0]

    def run(shell: Shell) -> int:
        status = 0
        for one in runs:
            status = one(shell)
        return status

    return run


def line_of(node: Node) -> int:
    """Return the line where a construct begins."""
    place = node.get("Position") or node.get("Pos") or {}
    return int(place.get("Line", 0))


COMPOUND: Final[dict[str, Callable[[Node], Run]]] = {}
"""What compiles each kind of compound command; :mod:`~btrfs_model.shell.compound` adds most."""


def statement(node: Node) -> Run:
    """Compile a statement: a command with its redirections, ``!`` and ``&``."""
    command: Node = node.get("Cmd") or {}
    line = line_of(node)
    kind = command.get("Type", "")
    opened = redirections(node.get("Redirs", []))
    if kind == "CallExpr":
        run = simple(command, node.get("Redirs", []), opened, line)
    elif not command:
        run = _redirected(lambda shell: 0, opened, line)
    else:
        run = COMPOUND[kind](command) if kind in COMPOUND else _unknown(kind, line)
        if opened:
            # bash is at the last line of a compound command when it opens files
            run = _redirected(run, opened, command["End"]["Line"])
    if node.get("Negated"):
        run = _negated(run)
    elif kind in _CHECKED or not command:
        run = _checked(run, line)
    if node.get("Background") or node.get("Coprocess"):
        # a subshell is the job itself: its traps are those of the job
        inside = kind == "Subshell" and not (opened or node.get("Negated"))
        run = _background(sequence(command.get("Stmts", [])) if inside else run)
    return run


def _unknown(kind: str, line: int) -> Run:
    raise UnknownError(f"line {line}: {kind}: this construct of bash is not known here")


# ------------------------------------------------------------------------------ set -e, ERR --

_CHECKED: Final = {
    "CallExpr",
    "Subshell",
    "TestClause",
    "ArithmCmd",
    "DeclClause",
    "LetClause",
    "|",
}


def _checked(run: Run, line: int) -> Run:
    def checked(shell: Shell) -> int:
        status = shell.pipe_status = run(shell)
        if status and not shell.conditions:
            failed(shell, line)
        return status

    return checked


def failed(shell: Shell, line: int) -> None:
    """Do what is due when a command failed that nobody looks at: the trap of ERR, ``set -e``."""
    if "ERR" in shell.traps:
        status, shell.line = shell.status, line
        trap = shell.traps.pop("ERR")
        try:
            evaluate(shell, trap)
        finally:
            shell.traps["ERR"] = trap
            shell.status = status
    if "errexit" in shell.options:
        raise Exit(shell.status)


def _negated(run: Run) -> Run:
    def negated(shell: Shell) -> int:
        shell.conditions += 1
        try:
            status = run(shell)
        finally:
            shell.conditions -= 1
        shell.pipe_status = status
        shell.status = int(not status)
        return shell.status

    return negated


def _background(run: Run) -> Run:
    def background(shell: Shell) -> int:
        inner = shell.copy()
        inner.conditions = 0
        inner.files.put(0, Source(b""))
        job = shell.world.jobs.start(partial(_job, inner, run), partial(_trapped, inner))
        shell.job = job.number
        shell.jobs[shell.job] = job
        shell.status = 0
        return 0

    return background


def _trapped(shell: Shell, signal: int) -> bool:
    """Run the trap of a signal; whether there is one."""
    action = shell.traps.get(SIGNALS[signal])
    if action:
        status = shell.status
        evaluate(shell, action)
        shell.status = status
    return action is not None


def _job(shell: Shell, run: Run) -> int:
    try:
        return _in_its_place(shell, run)
    except Killed as killed:
        shell.status = killed.status
        return at_exit(shell)
    finally:
        shell.files.close()


# --------------------------------------------------------------------------------- subshell --


def subshell(shell: Shell, run: Run) -> int:
    """Run in a copy of a shell, to its end; the trap of EXIT runs in it."""
    try:
        return _in_its_place(shell, run)
    finally:
        shell.files.close()


def _in_its_place(shell: Shell, run: Run) -> int:
    """Run where a shell is; the one around it has its own working directory again."""
    world = shell.world
    place, umask = world.cwd, world.umask
    try:
        return _to_its_end(shell, run)
    finally:
        if shell.level:
            world.umask = umask
            if world.cwd != place:
                world.chdir(place)


def _to_its_end(shell: Shell, run: Run) -> int:
    try:
        status = run(shell)
    except Exit as leave:
        status = leave.status
    except Return as leave:
        status = leave.status
    except Break:
        status = 0
    except UnknownError:
        raise
    except ShellError as error:
        shell.complain(str(error))
        status = 1
    shell.status = status
    return at_exit(shell)


def at_exit(shell: Shell) -> int:
    """Run the trap of EXIT; return the status that a shell ends with."""
    trap = shell.traps.pop("EXIT", None)
    if trap:
        status = shell.status
        try:
            evaluate(shell, trap)
            shell.status = status
        except Exit as leave:
            shell.status = leave.status
        except Leave:
            shell.status = status
    return shell.status


def captured(statements: Sequence[Node]) -> Callable[[Shell], bytes]:
    """Compile ``$( )``: what it writes."""
    if len(statements) == 1 and "Cmd" not in statements[0] and statements[0].get("Redirs"):
        name = words.text(statements[0]["Redirs"][0]["Word"])

        def contents(shell: Shell) -> bytes:
            try:
                with shell.world.open(shell.world.absolute(name(shell)), "r") as file:
                    return file.read()
            except OSError as error:
                shell.complain(f"{name(shell)}: {os.strerror(error.errno or 0)}")
                shell.status = 1
                return b""

        return contents
    run = sequence(statements)

    def output(shell: Shell) -> bytes:
        inner = shell.copy()
        sink = Sink()
        inner.files.put(1, sink)
        if "inherit_errexit" not in shell.options:
            inner.options.discard("errexit")
        shell.status = subshell(inner, run)
        shell.random = inner.random
        return bytes(sink.data)

    return output


def _subshell(node: Node) -> Run:
    inner = sequence(node.get("Stmts", []))

    def run(shell: Shell) -> int:
        shell.status = subshell(shell.copy(), inner)
        return shell.status

    return run


def evaluate(shell: Shell, text: str) -> int:
    """Run a text (``eval``, traps, sourced files).

    Raises
    ------
    ShellSyntaxError
        When it is none.
    """
    shell.status = _cached(text)(shell)
    return shell.status


_TEXTS: Final[dict[str, Run]] = {}


def _cached(text: str) -> Run:
    run = _TEXTS.get(text)
    if run is None:
        if len(_TEXTS) > 10_000:
            _TEXTS.clear()
        token = _when_called.set(True)
        try:
            run = _TEXTS[text] = script(text)
        finally:
            _when_called.reset(token)
    return run


def _redirected(run: Run, opened: Sequence[Redirection], line: int) -> Run:
    def redirected(shell: Shell) -> int:
        shell.line = line
        replaced: Replaced = {}
        try:
            for one in opened:
                if not one(shell, replaced):
                    shell.status = 1
                    return 1
            status = run(shell)
            shell.status = status
            return status
        finally:
            shell.files.restore(replaced)

    return redirected


# ---------------------------------------------------------------------------------- compound --


def _block(node: Node) -> Run:
    return sequence(node.get("Stmts", []))


def _binary(node: Node) -> Run:
    operation = node["Op"]
    if operation in ("|", "|&"):
        return _pipeline(node)
    first, second = statement(node["X"]), statement(node["Y"])
    wanted = operation == "&&"

    def run(shell: Shell) -> int:
        shell.conditions += 1
        try:
            status = first(shell)
        finally:
            shell.conditions -= 1
        return second(shell) if (not status) == wanted else status

    return run


def _pipeline(node: Node) -> Run:
    stages: list[tuple[Run, bool]] = []
    while True:
        stages.insert(0, (statement(node["Y"]), False))
        first = node["X"]
        errors = node["Op"] == "|&"
        command = first.get("Cmd") or {}
        if (
            command.get("Type") == "BinaryCmd"
            and command["Op"] in ("|", "|&")
            and not (first.get("Redirs") or first.get("Negated"))
        ):
            node = command
            stages[0] = (stages[0][0], errors)
            continue
        stages[0] = (stages[0][0], errors)
        stages.insert(0, (statement(first), False))
        break
    takes_errors = [after for _, after in stages[1:]] + [False]
    runs = [run for run, _ in stages]
    line = line_of(node)

    def pipeline(shell: Shell) -> tuple[int, list[int]]:
        pipes = [Pipe() for _ in runs[1:]]
        statuses = []
        for at, run in enumerate(runs):
            inner = shell.copy()
            if at:
                inner.files.put(0, pipes[at - 1].reader())
            if at + 1 < len(runs):
                inner.files.put(1, pipes[at])
                if takes_errors[at]:
                    inner.files.put(2, pipes[at])
            inner.conditions = shell.conditions
            statuses.append(subshell(inner, run))
        # a program without an end had its turn while the one behind it read
        for at, pipe in reversed(list(enumerate(pipes))):
            if pipe.rest is not None:
                shell.files[2].write(pipe.rest.close())
                statuses[at] = pipe.rest.status if statuses[at] == KILLED else statuses[at]
        status = statuses[-1]
        if "pipefail" in shell.options:
            status = next((one for one in reversed(statuses) if one), 0)
        shell.status = status
        return status, statuses

    def checked(shell: Shell) -> int:
        status, shell.pipe_status = pipeline(shell)
        if status and not shell.conditions:
            failed(shell, line)
        return status

    return checked


_when_called: Final = ContextVar("when_called", default=False)
"""Whether functions are compiled when they are first called, as those of a library are."""


def _called(node: Node) -> Run:
    """Compile a statement when it first runs."""
    compiled: list[Run] = []

    def run(shell: Shell) -> int:
        if not compiled:
            compiled.append(statement(node))
        return compiled[0](shell)

    return run


def _function(node: Node) -> Run:
    name = node["Name"]["Value"]
    body = _called(node["Body"]) if _when_called.get() else statement(node["Body"])

    def run(shell: Shell) -> int:
        shell.functions[name] = (body, node)
        shell.status = 0
        return 0

    return run


COMPOUND.update(Block=_block, Subshell=_subshell, BinaryCmd=_binary, FuncDecl=_function)


# ------------------------------------------------------------------------------ substitutions --


def _substitution(node: Node, quoted: str) -> Emit:
    """Compile ``$( )``: its output, without newlines at its end."""
    run = captured(node.get("Stmts", []))

    def emit(shell: Shell, builder: words.Builder) -> None:
        output = run(shell).replace(b"\0", b"").decode("utf-8", "surrogateescape").rstrip("\n")
        if quoted:
            builder.add(output, True)
        else:
            builder.expanded(output)

    return emit


def _process(node: Node, quoted: str) -> Emit:
    """Compile ``<( )``: the path of a file with its output."""
    if node["Op"] != "<(":
        raise UnknownError(f"{node['Op']} ): the output of a process substitution is not known")
    run = captured(node.get("Stmts", []))
    return lambda shell, builder: builder.add(shell.world.pipe(run(shell)), True)


words.EXPANSIONS.update(CmdSubst=_substitution, ProcSubst=_process)
