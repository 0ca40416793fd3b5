# SPDX-License-Identifier: GPL-2.0-only
r"""What the commands share: output, notes, progress.

Names are bytes. In Python they are strings, in which a byte that is not UTF-8 is a lone surrogate
(``surrogateescape``). What a command writes follows one rule:

- in JSON a name is such a string, the byte 0xff being ``"\udcff"``; other bytes, such as the
  values of extended attributes, are ``{"length": .., "base64": ..}``;
- in Parquet it is text, with ``\xff`` for that byte;
- on a terminal it is that text too, and what would control the terminal is escaped as well;
- in a pipe the name has its own bytes, except for control characters, which would break the
  rows of a table: they are escaped.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import click

from btrfs_model.base.printable import printable, visible_bytes
from btrfs_model.base.whole_file import name_error, naming, whole_file
from btrfs_model.cli.rows import is_plain, show, write_rows

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume

STDOUT = "standard output"
"""How errors call it."""

_MANY_ROWS = 1000
_QUIET = 1.0
"""Seconds before progress is shown on a terminal."""
SELDOM = 10.0
"""Seconds from line to line of progress elsewhere."""


@dataclass
class Told:
    """How much is told on standard error beside errors: ``-q`` and ``-v``."""

    quiet: bool = False
    verbose: bool = False


TOLD = Told()
"""Of the command that runs."""


def aside(text: str) -> None:
    """Print a line beside the result to standard error, unless nobody wants to know (``-q``)."""
    if not TOLD.quiet:
        click.echo(text, err=True)


def note(text: str) -> None:
    """Print a note to standard error, as :func:`aside` does."""
    aside(f"btrfs-model: note: {text}")


class _Stdout:
    """Standard output for bytes; errors name it."""

    def write(self, data: bytes) -> int:
        try:
            return sys.stdout.buffer.write(data)
        except OSError as error:
            name_error(error, STDOUT)
            raise

    def flush(self) -> None:
        with naming(STDOUT):
            sys.stdout.buffer.flush()


def stdout() -> BinaryIO:
    """Return standard output for bytes."""
    return cast(BinaryIO, _Stdout())


def echo(text: str) -> None:
    """Print a line to standard output."""
    with naming(STDOUT):
        click.echo(text.encode("utf-8", "surrogateescape"))


def write_work(path: Path | None, work: Mapping[str, int]) -> None:
    """Write counted work as JSON, where that was asked for."""
    write_json(path, dict(sorted(work.items())))


def write_json(path: Path | None, value: object) -> None:
    """Write something as JSON, where that was asked for."""
    if path is not None:
        text = json.dumps(value, indent=1) + "\n"
        with whole_file(path, special=True) as file:
            file.write(text.encode())


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index, as CSV for a name in ``.csv``, else as Parquet."""
    shown = {
        str(name): [visible_bytes(value) if isinstance(value, str) else value for value in column]
        for name, column in table.items()
        if column.dtype == "object"
    }
    shown_here = table.assign(**shown)
    with whole_file(path, special=True) as file:
        if path.suffix == ".csv":
            shown_here.to_csv(file, index=False)
        else:
            shown_here.to_parquet(file, index=False)


def print_json_lines(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print one JSON object a line."""
    for row in rows:
        echo(json.dumps(row, default=str))


def print_table(
    table: pd.DataFrame,
    *,
    as_json: bool = False,
    narrow: Sequence[str] | None = None,
    title: str | None = None,
    err: bool = False,
) -> None:
    """Print a table: aligned on a terminal, separated by tabs in a pipe, or as JSON lines.

    But in JSON, what is not printable in a name is escaped.

    Parameters
    ----------
    table : pandas.DataFrame
        The table.
    as_json : bool
        Whether to print JSON lines.
    narrow : sequence of str, optional
        The columns that a terminal has room for.
    title : str, optional
        A line above the table.
    err : bool
        Whether to print to standard error.
    """
    with naming("standard error" if err else STDOUT):
        _print_table(table, as_json, narrow, title, err)


def give_table(
    table: pd.DataFrame,
    output: Path | None,
    *,
    as_json: bool = False,
    narrow: Sequence[str] | None = None,
) -> None:
    """Write a table to a file, where one was named, else print it."""
    if output is not None:
        write_table(table, output)
    else:
        print_table(table, as_json=as_json, narrow=narrow)


def _print_table(
    table: pd.DataFrame,
    as_json: bool,
    narrow: Sequence[str] | None,
    title: str | None,
    err: bool,
) -> None:
    stream = sys.stderr if err else sys.stdout
    is_terminal = stream.isatty()
    if (as_json or not is_terminal) and len(table) >= _MANY_ROWS and is_plain(table):
        if title is not None and not as_json:
            stream.write(f"# {title}\n")
        stream.flush()
        write_rows(table, stream.buffer, as_json=as_json)
        stream.buffer.flush()
        return
    # what is missing is empty, and null in JSON
    table = table.astype(object).where(table.notna(), None)
    if as_json:
        print_json_lines(table.to_dict("records"))  # type: ignore[arg-type]
        return
    if is_terminal and narrow is not None:
        table = table[list(narrow)]
    rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    if not is_terminal:
        out = stream.buffer
        heading = [] if title is None else [[f"# {title}"]]
        for row in [*heading, list(table.columns), *rows]:
            line = "\t".join(printable(cell, keep_bytes=True) for cell in row)
            out.write(line.encode("utf-8", "surrogateescape") + b"\n")
        out.flush()
        return
    show(list(map(str, table.columns)), [[*map(printable, row)] for row in rows], title, err=err)


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


@contextmanager
def cleaned_up() -> Iterator[None]:
    """Let a process that is asked to end (SIGTERM) clean up first, as one that is interrupted."""
    owner = os.getpid()

    def ended(*_: object) -> None:
        if os.getpid() != owner:  # a process that was forked has nothing of its own to clean up
            os._exit(128 + signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, ended)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Lines:
    """Progress off a terminal: now and then a line with the step that is being done."""

    def __init__(self, total: int | None) -> None:
        self._begun = time.monotonic()
        self._total, self._steps, self._text = total, 0, ""
        self._ended = threading.Event()

    def step(self, text: str) -> None:
        self._steps += 1
        self._text = text

    def tell(self) -> None:
        """Write lines until this ends, which is a thread's work: a step may take long."""
        while not self._ended.wait(SELDOM):
            of = "" if self._total is None else f"/{self._total}"
            passed = time.monotonic() - self._begun
            aside(f"{passed:5.0f} s  {self._steps}{of}  {self._text}")

    @contextmanager
    def told(self) -> Iterator[None]:
        thread = threading.Thread(target=self.tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


@contextmanager
def progress(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show progress: a bar on a terminal, from the first second on; else a line every ten seconds.

    Parameters
    ----------
    total : int, optional
        Number of steps, where it is known.

    Yields
    ------
    callable
        To be called with a few words when a step begins.
    """
    if TOLD.quiet or not sys.stderr.isatty():
        lines = _Lines(total)
        with lines.told():
            yield lines.step
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    task = bar.add_task("", total=total)
    begun = -1

    def step(text: str) -> None:
        nonlocal begun
        begun += 1
        bar.update(task, description=text, completed=begun)

    timer = threading.Timer(_QUIET, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield step
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def asked_for(
    fs: Filesystem, subvolume: str, parent: str | None, clones: Sequence[str]
) -> tuple[Subvolume, Subvolume | None, list[Subvolume]]:
    """Return what ``btrfs send`` asks the kernel for: the subvolume, the parent, clone sources.

    A parent is a clone source too; where there is none, it is picked among the clone sources.
    """
    from btrfs_model.questions.send.parent import find_good_parent

    sent = _read_only(fs, subvolume, "subvolume")
    sources = [_read_only(fs, name, "clone source") for name in clones]
    if parent is not None:
        base = _read_only(fs, parent, "parent")
        return sent, base, [*sources, base]
    return sent, find_good_parent(fs, sent, sources) if sources else None, sources


def _read_only(fs: Filesystem, name: str, role: str) -> Subvolume:
    """Find a subvolume that is to be sent or cloned from: it has to be read-only."""
    from btrfs_model.base.errors import BtrfsModelError

    subvolume = fs.subvolume(name)
    if not subvolume.is_read_only:
        raise BtrfsModelError(f"{fs.path}: {role} {name} is not read-only")
    return subvolume
