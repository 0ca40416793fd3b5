# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model``: the command line.

Each command's module is imported when the command is used, and what it needs when it runs, so that
``btrfs-model --help`` is there at once.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TextIO

try:
    import click

    from btrfs_model.base.nearest import did_you_mean
    from btrfs_model.cli.common import TOLD, aside
    from btrfs_model.cli.flags import told_options
except KeyboardInterrupt:
    # it is the program that is interrupted while it starts
    sys.exit(130)

# Name, module, one line of help; in the order that --help shows.
_COMMANDS = {
    "replay": ("experiments", "Replay the workloads of commit messages, before and after."),
    "atlas": ("experiments", "Show what commits buy: by their messages, and by the model."),
    "sweep": ("sweeps", "Measure the same in very many cells, and what they depend on."),
    "send": ("streams", "Write the send stream of a subvolume, as btrfs send does."),
    "plan": ("streams", "Tell the sizes of all sends between snapshots, and the smallest chain."),
    "mkfs": ("scenarios", "Make a filesystem, empty or with the files of a folder."),
    "run": ("scenarios", "Carry out a list of operations and write the image."),
    "script": ("scripts", "Run a shell script, that of a file, a mail or a patch."),
    "replay-log": ("scenarios", "Replay the log of a crashed filesystem, as a mount does."),
    "log": ("trees", "Say what a log holds, and what kernels make of it."),
    "crashes": ("crashes", "Look at every state that a crash may leave, on each kernel."),
    "receive": ("streams", "Apply a send stream to an image, as btrfs receive does."),
    "dump-stream": ("streams", "Show the commands of a send stream."),
    "stream": ("stored", "Look into stored send streams: verify, ls, cat, tar."),
    "dump-tree": ("trees", "Show the items of trees."),
    "reads": ("blocks", "Show the tree blocks that a cold kernel reads for a send."),
    "draw": ("drawings", "Draw trees, the blocks that they share, or a leaf, as SVG."),
    "course": ("course", "Copy the notebooks of the course, and start JupyterLab."),
    "grade": ("course", "Grade assignments of the course that were handed in."),
    "explore": ("drawings", "Make a page of all trees, down to bytes, to look around in."),
    "tree-stats": ("trees", "Show levels, leaves and fill of trees."),
    "check": ("trees", "Look for damage in an image."),
    "rescue": ("rescue", "Write what can still be read of a damaged image."),
    "heal": ("rescue", "Make rotted sectors right from a stream, an image or a mirror."),
    "logical-resolve": ("trees", "Show which files use a logical address."),
    "subvolumes": ("files", "List the subvolumes of an image."),
    "ls": ("files", "List the files of a subvolume."),
    "cat": ("files", "Write the content of a file."),
    "diff": ("files", "Show what changed between two subvolumes, by path and content."),
    "tar": ("files", "Write the files of a subvolume as a tar archive."),
    "mount": ("images", "Show the files of an image in a folder, read only, by FUSE."),
    "image": ("images", "Compare two images, and say what differs and what it is about."),
    "fiemap": ("files", "Show where a file's extents lie and which are shared."),
    "devices": ("usage", "Show the devices of a filesystem and what is allocated on them."),
    "extents": ("usage", "Show how much of a file's extents is used, and by whom."),
    "du": ("usage", "Show what subvolumes use alone and what they share; what to delete."),
    "waste": ("waste", "Show what files keep for nothing, and what a rewrite frees."),
    "balance": ("whatif", "Tell which chunks a balance moves, and what is free then."),
    "mount-time": ("whatif", "Tell what a mount reads, and how long that takes."),
    "device-lost": ("whatif", "Tell which files are gone when devices are."),
    "defragment": ("whatif", "Tell what defragmentation costs, and how large a send is then."),
    "dedupe": ("whatif", "Tell what a dedupe frees, and how large a send is then."),
    "compression": ("waste", "Show how files are compressed, and why some are not."),
    "qgroups": ("usage", "Show quota groups, and beside them what there is."),
    "inode-resolve": ("usage", "Show all paths of an inode."),
    "calibrate": ("verify", "Measure what work takes on a kernel, as a machine for times."),
    "kernel": ("kernel", "Get kernels of other releases, bisect them, or build one that counts."),
    "ab": ("verify", "Compare the kernels before and after a commit or a patch."),
    "verify": ("verify", "Compare the model with live kernels."),
    "radar": ("radar", "Look for what a kernel does that the model does not."),
    "sample": ("scenarios", "Write an image to begin with; without a name, list them."),
    "patches": ("experiments", "Show the kernel commits that can be switched."),
}


class _Commands(click.Group):
    """The commands, imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module = import_module(f"btrfs_model.cli.commands.{_COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _COMMANDS and not name.startswith("-"):
            ctx.fail(f"No such command {name!r}{did_you_mean(name, _COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


def _version() -> str:
    """Return the version, and what the program is built of and runs on."""
    import platform

    from btrfs_model.base.errors import NotBuiltError
    from btrfs_model.base.version import __version__

    try:
        from btrfs_model.native.door import build

        built = f"C by {build()}"
    except NotBuiltError:
        built = "C is not built"
    return (
        f"btrfs-model {__version__}\n{built}; Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}"
    )


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        click.echo(_version())
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False,
              callback=_print_version,
              help="Show the version, what built it, and exit.")  # fmt: skip
def cli() -> None:
    """Model btrfs: real images in, the kernel's own send streams out.

    IMAGE is a file (or block device) with a btrfs filesystem; of one with several devices it is
    each of them, or the folder that they are in. Commands need neither root nor a mount, except
    where they ask the kernel of this machine. All but `receive` open it read-only. The --help of
    every command has examples; `man btrfs-model` has all. For completion in bash:
    eval "$(_BTRFS_MODEL_COMPLETE=bash_source btrfs-model)"
    """


cli.params += told_options()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    0, 1 for errors, 2 for wrong usage, 130 when interrupted, 143 when asked to end.
    """
    _take_closed_numbers()
    # A reader that went away (`| head`) ends this as quietly as any other tool.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # No command computes with matrices, so numpy need not start threads for that.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A command makes many objects and few cycles, and ends soon: looking for those takes longer.
    gc.set_threshold(200_000, 50, 100)
    from btrfs_model.cli.common import cleaned_up

    with cleaned_up():  # what is half written goes
        status = run(arguments)
    # nor for those that there are at the end
    gc.freeze()
    sys.exit(status)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; errors become one line."""
    TOLD.quiet = TOLD.verbose = False
    began = time.monotonic()
    try:
        with _warnings_in_one_line():
            result = cli.main(arguments, prog_name="btrfs-model", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except MemoryError:
        return _fail("out of memory")
    except OSError as error:
        return _fail(_describe(error), error)
    except Exception as error:
        # the package's own errors are one line; anything else is a bug and shows its traceback
        from btrfs_model.base.errors import BtrfsModelError

        if _was_interrupted(error):
            return 130
        if not isinstance(error, BtrfsModelError):
            raise
        return _fail(str(error), error)
    finally:
        if TOLD.verbose:
            _tell_what_ran(time.monotonic() - began)
    return result if isinstance(result, int) else 0


def _tell_what_ran(seconds: float) -> None:
    """Print what ``-v`` asks for in the end: what ran, how long, and in how much memory."""
    import resource

    # in KiB on Linux
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    aside(f"{_version()}\n{seconds:.2f} s, {memory:,} MiB at most")


class _Closed(io.RawIOBase):
    """Standard output that is closed: nothing is kept that could not be written in the end."""

    def writable(self) -> bool:
        return True

    def write(self, _: object) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF), "standard output")


def _take_closed_numbers() -> None:
    """Let no other file have the number of a standard one that is closed.

    What is read from or written to standard input and output fails then.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # each is opened for what it is not used for; errors that nobody wants to see go nowhere
            null = os.open(os.devnull, os.O_RDONLY if number == 1 else os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            if number != 1:
                setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
            else:
                sys.stdout = io.TextIOWrapper(_Closed(), write_through=True)


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether an interrupt is behind an error, as behind those of modules in the middle of C."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Show each warning of the package once, in one line."""
    with warnings.catch_warnings():
        usual = warnings.showwarning
        shown: set[str] = set()

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not category.__module__.startswith("btrfs_model."):
                usual(message, category, filename, lineno, file, line)
            elif str(message) not in shown:
                shown.add(str(message))
                aside(f"btrfs-model: warning: {message}")

        warnings.showwarning = show
        warnings.simplefilter("always", UserWarning, append=True)
        yield


def _describe(error: OSError) -> str:
    """One line for an error of the system, with the file where there is one."""
    from btrfs_model.base.errors import BtrfsModelError

    if isinstance(error, BtrfsModelError) or error.strerror is None:
        return str(error)
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _fail(message: str, error: BaseException | None = None) -> int:
    """Print one line: what went wrong, and the notes of the error; with ``-v`` where, too."""
    from btrfs_model.base.printable import printable

    if TOLD.verbose and error is not None:
        traceback.print_exception(error)
    message = "; ".join([message, *getattr(error, "__notes__", [])])
    click.echo(f"btrfs-model: {printable(message)}", err=True)
    return 1
