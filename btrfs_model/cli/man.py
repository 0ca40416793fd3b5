# SPDX-License-Identifier: GPL-2.0-only
"""The man page: ``python -m btrfs_model.cli.man`` writes ``btrfs-model.1``.

All of it comes from the definitions of commands and options, as ``--help`` does.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import click

from btrfs_model.cli import cli
from btrfs_model.cli.flags import Command

_AFTER = r""".SH EXIT STATUS
.TP
.B 0
All went well.
.TP
.B 1
Something failed, which one line on standard error says; or damage, or a difference, was found.
.TP
.B 2
The command line is wrong.
.TP
.B 130
It was interrupted.
.TP
.B 143
It was asked to end (SIGTERM), and cleaned up.
.SH ENVIRONMENT
.TP
.B BTRFS_MODEL_DATA
The folder \(lqdata\(rq of a clone, with all samples.
.TP
.B BTRFS_MODEL_KERNELS
With \(lqpython\(rq the plain Python of the algorithms runs, with \(lqc\(rq the C.
.TP
.B _BTRFS_MODEL_COMPLETE
With \(lqbash_source\(rq, \(lqzsh_source\(rq or \(lqfish_source\(rq, completion for that shell
is printed.
.SH SEE ALSO
.BR btrfs (8),
.BR btrfs-send (8),
.BR btrfs-receive (8),
.BR filefrag (8)
"""


def page() -> str:
    """Return the man page in the language of roff."""
    context = click.Context(cli, info_name="btrfs-model", **cli.context_settings)
    return "\n".join([
        r".\" made from the definitions of the options: python -m btrfs_model.cli.man",
        '.TH BTRFS-MODEL 1 "" "btrfs-model" "User Commands"',
        ".SH NAME",
        r"btrfs-model \- an executable model of btrfs",
        ".SH SYNOPSIS",
        r".B btrfs-model",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENT\fR]...",
        ".SH DESCRIPTION",
        *_paragraphs(cli),
        ".SH OPTIONS",
        *_options(cli, context),
        ".SH COMMANDS",
        *(line for name in cli.list_commands(context) for line in _command(name, context)),
        _AFTER,
    ])  # fmt: skip


def _command(name: str, parent: click.Context) -> Iterator[str]:
    command = cli.get_command(parent, name)
    assert command is not None
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_text(f'btrfs-model {name} {usage}')}"
    yield from _paragraphs(command)
    yield from _options(command, context)
    if isinstance(command, Command):
        yield from (".PP", "Examples:", ".PP", ".nf", ".RS")
        yield from map(_text, command.examples)
        yield from (".RE", ".fi")


def _paragraphs(command: click.Command) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", (command.help or "").strip()):
        yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            yield ".TP"
            yield rf"\fB{_text(record[0])}\fR"
            yield _text(record[1])


def _text(text: str) -> str:
    """Return text as roff takes it: nothing in it is a request or an escape."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    sys.stdout.write(page())
