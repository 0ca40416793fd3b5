# SPDX-License-Identifier: GPL-2.0-only
"""Text of bash as a syntax tree, by shfmt: nodes are the dicts of ``shfmt --to-json``."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

from btrfs_model.base.errors import BtrfsModelError

Node: TypeAlias = dict[str, Any]
_WHERE: Final = re.compile(r"^(?:.*?:)?(\d+):(\d+): (.*)$")


class ShellSyntaxError(BtrfsModelError):
    """Text that bash refuses.

    Attributes
    ----------
    line : int
        Where, from 1.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message, line)
        self.message, self.line = message, line

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


@functools.cache
def _program() -> str:
    beside = Path(sys.executable).with_name("shfmt")
    found = str(beside) if beside.is_file() else shutil.which("shfmt")
    if not found:
        raise BtrfsModelError("shfmt is not here: pip install 'btrfs_model[script]'")
    return found


def parse(text: str) -> Node:
    """Parse a script.

    Raises
    ------
    ShellSyntaxError
        With the line; bash would refuse it too.
    BtrfsModelError
        When there is no shfmt.
    """
    ran = subprocess.run(
        [_program(), "--language-dialect", "bash", "--to-json"],
        input=text.encode("utf-8", "surrogateescape"),
        capture_output=True,
    )
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip().splitlines()[0]
        where = _WHERE.match(said)
        line, message = (int(where[1]), where[3]) if where else (1, said)
        raise ShellSyntaxError(message, line)
    tree: Node = json.loads(ran.stdout.decode("utf-8", "surrogateescape"))
    return tree


@functools.lru_cache(4096)
def parse_arithmetic(text: str) -> Node:
    """Parse an expression, as ``(( ))`` takes it.

    Raises
    ------
    ShellSyntaxError
        When it is none.
    """
    command: Node = parse(f"(( {text}\n))")["Stmts"][0]["Cmd"]
    if command["Type"] != "ArithmCmd":
        raise ShellSyntaxError(f"{text}: syntax error in expression", 1)
    expression: Node = command["X"]
    return expression
