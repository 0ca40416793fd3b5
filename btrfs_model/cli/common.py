# SPDX-License-Identifier: GPL-2.0-only
r"""What the commands share: arguments, output, progress.

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
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

import click

from btrfs_model.base.printable import printable, visible_bytes
from btrfs_model.base.whole_file import name_error, naming, whole_file
from btrfs_model.cli.rows import is_plain, write_rows
from btrfs_model.patches import KERNEL

if TYPE_CHECKING:
    import pandas as pd

    from btrfs_model.volume.filesystem import Filesystem

STDOUT = "standard output"
"""How errors call it."""

_MANY_ROWS = 1000
_QUIET = 1.0
"""Seconds before progress is shown."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Images:
    """The devices of a filesystem, as they are named on the command line."""

    paths: tuple[str, ...]
    mounted: bool
    degraded: bool

    def open(self) -> Filesystem:
        """Open the filesystem."""
        from btrfs_model.volume.filesystem import Filesystem

        paths = self.paths[0] if len(self.paths) == 1 else self.paths
        return Filesystem.open(paths, mounted=self.mounted, degraded=self.degraded)

    def __str__(self) -> str:
        more = len(self.paths) - 1
        return f"{self.paths[0]} and {more} more" if more else self.paths[0]


_IMAGE_OPTIONS = (
    click.option("--degraded", is_flag=True,
                 help="Do without missing devices, where all profiles allow."),
    click.option("--mounted-read-only", is_flag=True,
                 help="Read a block device also while it is in use."),
)  # fmt: skip


def image_argument(command: F) -> F:
    """IMAGE, once or for each device, and how it is opened: an :class:`Images`.

    The one rule of all commands: what follows IMAGE are as many arguments as the command has, and
    all before them are devices. See :func:`images_before` for a command that has any number.
    """
    return _with_images(command, "IMAGE...")


def images_before(name: str, metavar: str) -> Callable[[F], F]:
    """IMAGE, and after it any number of arguments that the command gets as `name`.

    The first argument is a device, and each that follows as long as it is a file or block device
    with a superblock.
    """

    def decorate(command: F) -> F:
        @wraps(command)
        def split(*args: Any, image: Images, **kwargs: Any) -> Any:
            from btrfs_model.volume.devices import is_device

            paths = image.paths
            end = 1
            while end < len(paths) and is_device(Path(paths[end])):
                end += 1
            named = replace(image, paths=paths[:end])
            return command(*args, image=named, **kwargs, **{name: paths[end:]})

        return _with_images(cast(F, split), f"IMAGE... {metavar}")

    return decorate


def _with_images(command: F, metavar: str) -> F:
    @wraps(command)
    def call(
        *args: Any, image: tuple[str, ...], degraded: bool, mounted_read_only: bool, **kwargs: Any
    ) -> Any:
        if not image:
            # one argument alone is the last one, so the name of the first would mislead
            context = click.get_current_context()
            wanted = " ".join(context.command.collect_usage_pieces(context)[1:])
            raise click.UsageError(f"Missing argument: {wanted} is wanted", context)
        return command(*args, image=Images(image, mounted_read_only, degraded), **kwargs)

    wrapped = cast(F, call)
    for option in reversed(_IMAGE_OPTIONS):
        wrapped = option(wrapped)
    return click.argument("image", metavar=metavar, nargs=-1, type=click.Path())(wrapped)


written_image_argument = click.argument("image", type=click.Path(path_type=Path))
"""IMAGE that is changed, or made anew: one device."""
subvolume_argument = click.argument("subvolume", metavar="SUBVOL")
parent_option = click.option(
    "-p", "--parent", metavar="SUBVOL", help="Send the difference to this subvolume."
)


class Command(click.Command):
    """A command whose help ends with examples.

    Parameters
    ----------
    examples : sequence of str
        Command lines.
    **attributes
        As for :class:`click.Command`.
    """

    def __init__(self, *, examples: Sequence[str], **attributes: Any) -> None:
        super().__init__(**attributes)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are, without wrapping them."""
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def json_option(text: str) -> Callable[[F], F]:
    """``--json``, with what it gives."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def behaviour_option(default: str = KERNEL) -> Callable[[F], F]:
    """``--behaviour``."""
    return click.option(
        "--behaviour", default=default, show_default=True, metavar="B",
        help="The kernel: a preset, with '+ TOGGLE' and '- TOGGLE'; see `btrfs-model patches`.",
    )  # fmt: skip


def parquet_option(text: str) -> Callable[[F], F]:
    """``--parquet``, with what it writes."""
    return click.option("--parquet", type=click.Path(path_type=Path), metavar="FILE", help=text)


def one_output(as_json: bool, parquet: Path | None) -> None:
    """Refuse ``--json`` beside ``--parquet``."""
    if as_json and parquet is not None:
        raise click.UsageError("--json and --parquet exclude each other")


def work_option(text: str) -> Callable[[F], F]:
    """``--work``, with what it writes."""
    return click.option("--work", type=click.Path(path_type=Path), metavar="FILE.json", help=text)


machine_option = click.option(
    "--machine",
    metavar="NAME|FILE",
    help="Predict times on this machine: a name of data/machines, or a file NAME.toml.  "
    "[default: the native one]",
)


def whole_number(text: str, least: int = -(2**63)) -> int:
    """Read a whole number of 64 bits, from `least` on: decimal, or after ``0x``.

    Raises
    ------
    click.BadParameter
        When it is none.
    """
    try:
        number = int(text, 0)
    except ValueError:
        raise click.BadParameter(f"'{text}' is not a number") from None
    if not least <= number < 2**64:
        raise click.BadParameter(f"{text} is not a number from {least} to {2**64 - 1}")
    return number


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of 64 bits that is not negative, such as an address."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        return whole_number(str(value), 0)


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


def write_parquet(table: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, without its index."""
    shown = {
        str(name): [visible_bytes(value) if isinstance(value, str) else value for value in column]
        for name, column in table.items()
        if column.dtype == "object"
    }
    with whole_file(path, special=True) as file:
        table.assign(**shown).to_parquet(file, index=False)


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
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold", title=title, title_justify="left")
    for name, kind in zip(table.columns, table.dtypes, strict=True):
        is_number = getattr(kind, "kind", "O") in "iuf"
        shown.add_column(
            str(name), justify="right" if is_number else "left", overflow="fold",
            no_wrap=name == table.columns[0],
        )  # fmt: skip
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    Console(stderr=err).print(shown)


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)


class _Lines:
    """Progress off a terminal: a line for each step that begins after the first second."""

    def __init__(self, total: int | None) -> None:
        self._begun = time.monotonic()
        self._steps, self._of = 0, "" if total is None else f"/{total}"

    def step(self, text: str) -> None:
        self._steps += 1
        passed = time.monotonic() - self._begun
        if passed >= _QUIET:
            click.echo(f"{passed:5.0f} s  {self._steps}{self._of}  {text}", err=True)


@contextmanager
def progress(total: int | None = None) -> Iterator[Callable[[str], None]]:
    """Show progress from the first second on: a bar on a terminal, else a line for each step.

    Parameters
    ----------
    total : int, optional
        Number of steps.

    Yields
    ------
    callable
        To be called with a few words when a step begins.
    """
    if not sys.stderr.isatty():
        lines = _Lines(total)
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
