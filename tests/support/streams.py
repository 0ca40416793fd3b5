# SPDX-License-Identifier: GPL-2.0-only
"""Streams for tests: those of the corpus, and random ones that are well formed."""

import functools
import io
import os
import re
import subprocess
from typing import Any

import corpus
import hypothesis.strategies as st
import numpy as np

from btrfs_model.base.errors import StreamError
from btrfs_model.ondisk.stream import ATTRIBUTES_BY_NAME, COMMANDS, MAGIC, Kind
from btrfs_model.stream.dump import dump_text
from btrfs_model.stream.index import Batch, _allocate, read_batches
from btrfs_model.stream.reader import read_stream
from btrfs_model.stream.writer import StreamWriter


def stream_files(case: str) -> list[str]:
    """Names of the streams of a case."""
    return corpus.files(case, "*.stream.zst")


@functools.cache
def options_of(stream: bytes) -> dict[str, Any]:
    """How to read a stream: one without header does not say its version, so try."""
    if stream.startswith(MAGIC):
        return {}
    for version in (1, 2):
        options = {"header": False, "version": version}
        try:
            list(read_stream(stream, **options))
        except StreamError:
            continue
        return options
    raise ValueError("a stream without header that no version explains")


@functools.cache
def progs_escapes_all() -> bool:
    """Whether the btrfs-progs of this machine is 6.9.1 or later."""
    output = subprocess.run(["btrfs", "--version"], check=True, capture_output=True, text=True)
    found = re.search(r"v(\d+)\.(\d+)(?:\.(\d+))?", output.stdout)
    assert found, output.stdout
    return tuple(int(part or 0) for part in found.groups()) >= (6, 9, 1)


def progs_dump(stream: bytes, zone: str = "UTC") -> tuple[bytes, bool]:
    """Text of ``btrfs receive --dump`` and whether it was content with the stream."""
    done = subprocess.run(
        ["btrfs", "receive", "--dump"],
        input=stream,
        capture_output=True,
        check=False,
        env={**os.environ, "TZ": zone},
    )
    return done.stdout, done.returncode == 0


def our_dump(stream: bytes, **options: Any) -> tuple[bytes, bool]:
    """The same of :func:`btrfs_model.stream.dump_text`."""
    out = io.BytesIO()
    try:
        dump_text(stream, out, **options)
    except StreamError:
        return out.getvalue(), False
    return out.getvalue(), True


# Bytes that text has to do something about, among others.
_names = st.binary(max_size=40) | st.sampled_from(
    [
        b"",
        b"a",
        b"dir/",
        b"/",
        b"a b",
        b"tab\tnew\nline\\",
        b"\xc3\xa4\xff",
        b"nul\0rest",
        b"x" * 31,
    ]
)
_numbers = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 4096, 2**31, 2**32, 2**63])
_seconds = st.integers(-(2**33), 2**34) | st.sampled_from(
    [
        0,
        -1,
        899,
        900,
        1711846800,
        1711846799,
        253402300800,
        -62135596801,
        2**40,
        2**63 - 1,
        -(2**63),
    ]
)
_VALUES = {
    Kind.U8: st.integers(0, 255),
    Kind.U32: st.integers(0, 2**32 - 1),
    Kind.U64: _numbers,
    Kind.UUID: st.binary(min_size=16, max_size=16),
    Kind.TIMESPEC: st.tuples(_seconds, st.integers(0, 2**32 - 1)),
    Kind.STRING: _names,
    Kind.BINARY: _names,
}


@st.composite
def commands(draw: st.DrawFn, version: int) -> tuple[str, dict[str, Any]]:
    """Name and values of a command, with what it must have and some attributes more."""
    known = [command for command in COMMANDS.values() if command.version <= version]
    command = draw(st.sampled_from([command for command in known if command.name != "end"]))
    more = [name for name, kind in ATTRIBUTES_BY_NAME.items() if kind.version <= version]
    extra = draw(st.lists(st.sampled_from(more), max_size=2))
    names = dict.fromkeys([*command.mandatory, *extra])
    if "data" in names:
        names["data"] = names.pop("data")
    return command.name, {name: draw(_VALUES[ATTRIBUTES_BY_NAME[name].kind]) for name in names}


@st.composite
def streams(draw: st.DrawFn, versions: tuple[int, ...] = (1, 2, 3)) -> bytes:
    """A well-formed stream of any commands."""
    writer = StreamWriter(draw(st.sampled_from(versions)))
    body = draw(st.lists(commands(writer.version), max_size=12))
    pieces = [writer.command(name, **values) for name, values in body]
    return b"".join([writer.header(), *pieces, writer.end()])


def index_stream(stream: bytes | bytearray, **options: Any) -> Batch:
    """All commands of a stream as one batch."""
    batches = list(read_batches(stream, **options))
    empty = _allocate(memoryview(b""), 0, 0, 0)
    columns = {
        name: np.concatenate([column, *(batch.columns[name] for batch in batches)])
        for name, column in empty.columns.items()
        if name != "first"
    }
    rows = np.cumsum([0, *(len(batch.attribute_type) for batch in batches)], dtype=np.uint64)
    starts = [batch.first[:-1] + row for batch, row in zip(batches, rows, strict=False)]
    return Batch(memoryview(stream), 0, first=np.concatenate([*starts, rows[-1:]]), **columns)
