# SPDX-License-Identifier: GPL-2.0-only
"""Compound commands: loops, choices, tests, arithmetic, ``time``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from btrfs_model.shell.compile import COMPOUND, line_of, sequence, statement
from btrfs_model.shell.declare import declaration
from btrfs_model.shell.expansion import words
from btrfs_model.shell.expansion.patterns import matches
from btrfs_model.shell.state import Break, DiscardError, UnknownError
from btrfs_model.shell.tests import conditional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from btrfs_model.shell.parse import Node
    from btrfs_model.shell.state import Run, Shell


def _condition(statements: Sequence[Node]) -> Run:
    """Compile statements whose failure decides."""
    run = sequence(statements)

    def condition(shell: Shell) -> int:
        shell.conditions += 1
        try:
            return run(shell)
        finally:
            shell.conditions -= 1

    return condition


def _if(node: Node) -> Run:
    if not node.get("Cond"):
        return sequence(node["Then"])
    condition, then = _condition(node["Cond"]), sequence(node["Then"])
    otherwise = _if(node["Else"]) if node.get("Else") else None

    def run(shell: Shell) -> int:
        if not condition(shell):
            return then(shell)
        if otherwise is not None:
            return otherwise(shell)
        shell.status = 0
        return 0

    return run


def _turn(shell: Shell, body: Run, line: int) -> tuple[int, bool]:
    """Run the body of a loop once; return its status, and whether the loop ends."""
    shell.world.step(line)
    try:
        return body(shell), False
    except Break as leave:
        if leave.loops > 1 and shell.loops > 1:
            raise Break(leave.loops - 1, leave.again) from None
        return 0, not leave.again


def _while(node: Node) -> Run:
    condition, body = _condition(node["Cond"]), sequence(node["Do"])
    until, line = node.get("Until", False), line_of(node["Do"][0])

    def run(shell: Shell) -> int:
        status = 0
        shell.loops += 1
        try:
            while True:
                try:
                    if bool(condition(shell)) != until:
                        break
                except Break as leave:
                    if leave.loops > 1 and shell.loops > 1:
                        raise Break(leave.loops - 1, leave.again) from None
                    if leave.again:
                        continue
                    break
                status, ended = _turn(shell, body, line)
                if ended:
                    break
        finally:
            shell.loops -= 1
        shell.status = status
        return status

    return run


def _for(node: Node) -> Run:
    loop = node["Loop"]
    if node.get("Select"):
        raise UnknownError("select: this construct of bash is not known here")
    body = sequence(node["Do"])
    if loop["Type"] == "CStyleLoop":
        return _c_loop(loop, body)
    name = loop["Name"]["Value"]
    named = ("InPos" in loop and bool(loop["InPos"].get("Line"))) or "Items" in loop
    items = [words.fields(one) for one in loop.get("Items") or []]
    line = line_of(node["Do"][0])

    def run(shell: Shell) -> int:
        values: list[str] = []
        if not named:
            values = list(shell.arguments)
        for one in items:
            values += [one] if isinstance(one, str) else one(shell)
        status = 0
        shell.loops += 1
        try:
            for value in values:
                shell.set(name, value)
                status, ended = _turn(shell, body, line)
                if ended:
                    break
        finally:
            shell.loops -= 1
        shell.status = status
        return status

    return run


def _c_loop(loop: Node, body: Run) -> Run:
    initial, condition, after = (words.expression(loop[part]) if loop.get(part) else None
                                 for part in ("Init", "Cond", "Post"))  # fmt: skip
    line = int((loop.get("Lparen") or {}).get("Line", 0))

    def run(shell: Shell) -> int:
        if initial:
            initial(shell)
        status = 0
        shell.loops += 1
        try:
            while condition is None or condition(shell):
                try:
                    status = body(shell)
                except Break as leave:
                    if leave.loops > 1 and shell.loops > 1:
                        raise Break(leave.loops - 1, leave.again) from None
                    status = 0
                    if not leave.again:
                        break
                shell.world.step(line)
                if after:
                    after(shell)
        finally:
            shell.loops -= 1
        shell.status = status
        return status

    return run


def _case(node: Node) -> Run:
    word = words.text(node["Word"])
    items = [(item["Op"], [words.pattern(one) for one in item["Patterns"]],
              sequence(item["Stmts"]) if item.get("Stmts") else None)
             for item in node.get("Items") or []]  # fmt: skip

    def run(shell: Shell) -> int:
        value, status, falls = word(shell), 0, False
        shell.status = 0
        for operation, choices, body in items:
            if falls or any(matches(shell, one(shell), value) for one in choices):
                status = body(shell) if body else 0
                falls = operation == ";&"
                if operation == ";;":
                    break
        shell.status = status
        return status

    return run


def _decided(node: Node, decide: Callable[[Shell], object], opening: str) -> Run:
    """Compile ``(( ))``, ``let`` or ``[[ ]]``: its status is what it decides."""
    line = line_of(node)

    def run(shell: Shell) -> int:
        shell.line = line
        try:
            shell.status = int(not decide(shell))
        except DiscardError as error:
            shell.complain(f"{opening}: {error}")
            shell.status = 1
        return shell.status

    return run


def _arithmetic(node: Node) -> Run:
    return _decided(node, words.expression(node["X"]), "((")


def _let(node: Node) -> Run:
    values = [words.expression(one) for one in node["Exprs"]]
    return _decided(node, lambda shell: [one(shell) for one in values][-1], "let")


def _test(node: Node) -> Run:
    return _decided(node, conditional(node["X"]), "[[")


def _time(node: Node) -> Run:
    run = statement(node["Stmt"]) if node.get("Stmt") else (lambda shell: 0)
    posix = node.get("PosixFormat", False)
    line = line_of(node)

    def timed(shell: Shell) -> int:
        shell.world.step(line)
        shell.world.region()
        began = shell.world.clock()
        try:
            return run(shell)
        finally:
            shell.world.region()
            took = shell.world.clock() - began
            if posix:
                told = f"real {took:.2f}\nuser 0.00\nsys 0.00\n"
            else:
                minutes, seconds = divmod(took, 60)
                told = f"\nreal\t{int(minutes)}m{seconds:.3f}s\nuser\t0m0.000s\nsys\t0m0.000s\n"
            shell.files[2].write(told.encode())

    return timed


COMPOUND.update(
    IfClause=_if, WhileClause=_while, ForClause=_for, CaseClause=_case, ArithmCmd=_arithmetic,
    TestClause=_test, LetClause=_let, TimeClause=_time, DeclClause=declaration,
)  # fmt: skip
