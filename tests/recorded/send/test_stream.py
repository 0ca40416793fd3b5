# SPDX-License-Identifier: GPL-2.0-only
"""Reading and writing send streams: every real one, and what is not a stream."""

import functools
import io
import os
import struct
import threading
from pathlib import Path
from typing import Any

import corpus
import hypothesis.strategies as st
import numpy as np
import pytest
import twins
from hypothesis import given
from streams import index_stream, options_of, stream_files, streams

from btrfs_model.base.errors import StreamError
from btrfs_model.native import door
from btrfs_model.native.choice import Choice
from btrfs_model.ondisk.hashes import crc32c
from btrfs_model.ondisk.stream import (
    ATTRIBUTES,
    ATTRIBUTES_BY_NAME,
    COMMAND_HEADER,
    COMMANDS,
    MAGIC,
    STREAM_HEADER,
)
from btrfs_model.stream.index import Batch
from btrfs_model.stream.reader import read_stream
from btrfs_model.stream.writer import StreamWriter

COLUMNS = [name for name in Batch.__slots__ if name not in ("data", "base")]


def rewrite(stream: bytes, **options: Any) -> bytes:
    """Write again what was read."""
    written = bytearray()
    for command in read_stream(stream, **options):
        writer = StreamWriter(command.version)
        if command.offset != len(written):
            written += writer.header()
        assert command.offset == len(written)
        written += writer.command(command.name, **command.attributes)
    return bytes(written)


def outcome(stream: bytes, choice: Choice, **options: Any) -> list[Any] | str:
    """Columns of a stream, or the text of its error."""
    with twins.select(choice):
        try:
            batch = index_stream(stream, **options)
        except StreamError as error:
            return str(error)
    arrays = [getattr(batch, name) for name in COLUMNS]
    return [(array.dtype, array.tolist()) for array in arrays]


def error_of(source: Any) -> tuple[int, str] | None:
    """Place and text of what is wrong with a stream."""
    try:
        list(read_stream(source))
    except StreamError as error:
        return error.offset, error.message
    return None


def reseal(stream: bytes, start: int, end: int) -> bytes:
    """Make length and CRC of a command right."""
    _, number, _ = COMMAND_HEADER.unpack_from(stream, start)
    length = end - start - COMMAND_HEADER.size
    body = stream[start + COMMAND_HEADER.size : end]
    crc = crc32c(0, COMMAND_HEADER.pack(length, number, 0) + body)
    return stream[:start] + COMMAND_HEADER.pack(length, number, crc) + body + stream[end:]


def a_command(version: int, number: int, *attributes: tuple[int, bytes]) -> bytes:
    """A stream with one command, right or not."""
    body = b"".join(struct.pack("<HH", kind, len(value)) + value for kind, value in attributes)
    command = COMMAND_HEADER.pack(0, number, 0) + body
    return STREAM_HEADER.pack(MAGIC, version) + reseal(command, 0, len(command))


@functools.cache
def small_stream() -> bytes:
    """The smallest stream of version 2 in the corpus."""
    names = [(case, file) for case in corpus.cases("send/random") for file in stream_files(case)]
    found = [corpus.stream(*name) for name in names[:200]]
    second = [stream for stream in found if stream.startswith(MAGIC + b"\2")]
    return min(second or found, key=len)


# ------------------------------------------------------------------------- the format


def test_c_and_python_have_the_same_format() -> None:
    lib = door.lib
    assert len(lib.bm_stream_command_rules) == len(COMMANDS) + 1
    assert len(lib.bm_stream_attribute_rules) == len(ATTRIBUTES) + 1
    for number, command in COMMANDS.items():
        mandatory = sum(1 << ATTRIBUTES_BY_NAME[name].number for name in command.mandatory)
        rule = lib.bm_stream_command_rules[number]
        assert (rule.version, rule.mandatory) == (command.version, mandatory), command
    for number, attribute in ATTRIBUTES.items():
        rule = lib.bm_stream_attribute_rules[number]
        assert (rule.version, rule.size) == (attribute.version, attribute.kind.size), attribute


def test_the_worked_example() -> None:
    expected = bytes.fromhex("05 00 00 00  0b 00  ab 97 2e 63  0f 00  01 00  66")
    assert StreamWriter(1).command("unlink", path=b"f") == expected


# ------------------------------------------------------------------------- real streams


@pytest.mark.claim("Every stream of a kernel is read, and written again with the same bytes.")
@pytest.mark.parametrize("case", corpus.cases("send"))
def test_every_real_stream_is_read_and_written(case: str) -> None:
    files = stream_files(case)
    for file in files[:: 1 + len(files) // 6]:
        stream = corpus.stream(case, file)
        options = options_of(stream)
        assert rewrite(stream, **options) == stream, file
        assert outcome(stream, "c", **options) == outcome(stream, "python", **options), file


def test_values_have_the_types_of_their_attributes() -> None:
    writer = StreamWriter(3)
    values: dict[str, Any] = {
        "path": b"f", "verity_algorithm": 1, "verity_block_size": 4096, "verity_salt_data": b"",
        "verity_sig_data": b"sig",
    }  # fmt: skip
    times: dict[str, Any] = {
        "path": b"", "atime": (-1, 999999999), "mtime": (2**40, 0), "ctime": (0, 1),
    }  # fmt: skip
    write: dict[str, Any] = {"path": b"f", "file_offset": 2**64 - 1, "data": b"x" * 100_000}
    stream = b"".join([
        writer.header(), writer.command("enable_verity", **values),
        writer.command("utimes", **times), writer.command("write", **write), writer.end(),
    ])  # fmt: skip
    read = list(read_stream(stream))
    assert [command.name for command in read] == ["enable_verity", "utimes", "write", "end"]
    assert [command.attributes for command in read] == [values, times, write, {}]
    assert isinstance(read[2]["data"], memoryview)
    assert list(read[0].attributes) == list(values)
    assert {command.version for command in read} == {3}


@given(st.data())
def test_a_pipe_gives_what_memory_gives(data: st.DataObject) -> None:
    """However the bytes come, and whichever kernel reads them."""

    class Dribble(io.RawIOBase):
        name = "dribble"

        def __init__(self, stream: bytes) -> None:
            self.stream = io.BytesIO(stream)

        def read(self, size: int = -1) -> bytes:
            return self.stream.read(data.draw(st.integers(1, 40)))

    stream = data.draw(streams()) + data.draw(st.just(b"") | streams())
    choice: Choice = data.draw(st.sampled_from(["c", "python"]))
    with twins.select(choice):
        assert list(read_stream(Dribble(stream))) == list(read_stream(stream))
        cut = stream[: data.draw(st.integers(0, len(stream)))]
        assert error_of(Dribble(cut)) == error_of(cut)


def test_a_path_a_file_and_a_pipe(tmp_path: Path) -> None:
    stream = small_stream()
    expected = list(read_stream(stream))
    file = tmp_path / "a.stream"
    file.write_bytes(stream)
    assert list(read_stream(file)) == expected
    assert list(read_stream(str(file))) == expected
    with file.open("rb") as opened:
        assert list(read_stream(opened)) == expected
    reader, writer = os.pipe()
    thread = threading.Thread(target=lambda: Path(f"/dev/fd/{writer}").write_bytes(stream))
    with os.fdopen(reader, "rb") as pipe:
        thread.start()
        thread.join()
        os.close(writer)
        assert list(read_stream(pipe)) == expected


def test_streams_that_follow_each_other() -> None:
    one, two = StreamWriter(1), StreamWriter(2)
    first = one.header() + one.command("unlink", path=b"a")
    second = two.header() + two.command("fileattr", path=b"b", fileattr=1) + two.end()
    for choice in ("c", "python"):
        with twins.select(choice):
            # also when the first has no end
            for stream in (first + second, first + one.end() + second, second + first):
                assert {command.version for command in read_stream(stream)} == {1, 2}
                assert rewrite(stream) == stream


def test_a_fragment_without_header_or_end() -> None:
    writer = StreamWriter(2)
    fragment = writer.command("write", path=b"f", file_offset=0, data=b"x" * 70_000)
    assert len(list(read_stream(fragment, header=False, version=2))) == 1
    assert list(read_stream(b"", header=False)) == []
    with pytest.raises(StreamError, match="offset 0: no stream header"):
        list(read_stream(fragment))
    with pytest.raises(StreamError, match="offset 0: command write: no attribute 30840"):
        list(read_stream(fragment, header=False, version=1))


def test_a_batch_of_several_pieces() -> None:
    """More commands than one call of the kernel takes."""
    writer = StreamWriter()
    stream = writer.header() + writer.command("chmod", path=b"f", mode=0o644) * 40_000
    batch = index_stream(stream)
    assert len(batch) == 40_000
    assert np.array_equal(batch.first, np.arange(40_001) * 2)
    assert set(np.diff(batch.attribute_offset[::2]).tolist()) == {10 + 4 + 1 + 4 + 8}
    assert outcome(stream, "c") == outcome(stream, "python")


# ------------------------------------------------------------------------- broken streams

PATH, INO, FILEATTR = (ATTRIBUTES_BY_NAME[name].number for name in ("path", "ino", "fileattr"))
BROKEN = {
    "empty": (b"", "offset 0: cut short: the stream header has 17 bytes, 0 are there"),
    "header cut": (MAGIC, "offset 0: cut short: the stream header has 17 bytes, 13 are there"),
    "magic": (b"btrfs-strean\0\1\0\0\0", "offset 0: no stream header"),
    "version 0": (STREAM_HEADER.pack(MAGIC, 0), "version 0 of the stream is not supported"),
    "version 4": (STREAM_HEADER.pack(MAGIC, 4), "version 4 of the stream is not supported"),
    "command cut": (a_command(1, 12, (PATH, b"d"))[:-1], "cut short: command rmdir has 15 bytes"),
    "crc": (a_command(1, 12, (PATH, b"d"))[:-1] + b"e", "command rmdir: bad crc: found 0x"),
    "command": (a_command(3, 27), "command 27 does not exist in version 3"),
    "command 0": (a_command(1, 0), "command 0 does not exist"),
    "later command": (a_command(1, 24), "command fileattr does not exist in version 1"),
    "attribute": (a_command(3, 12, (36, b"")), "command rmdir: no attribute 36 in version 3"),
    "attribute 0": (a_command(1, 12, (0, b"")), "no attribute 0 in version 1"),
    "later attribute": (a_command(1, 12, (FILEATTR, bytes(8))), "no attribute fileattr in"),
    "twice": (a_command(1, 12, (PATH, b"d"), (PATH, b"e")), "attribute path is there twice"),
    "missing": (a_command(1, 3, (PATH, b"f")), "command mkfile: attribute ino is missing"),
    "size": (a_command(1, 3, (INO, b"1234")), "attribute ino has 4 bytes instead of 8"),
    "too long": (
        reseal(a_command(1, 12, (PATH, b"dir")), 17, 17 + 10 + 6),
        "command rmdir: path needs 7 bytes, 6 are left",
    ),
    "half an attribute": (reseal(a_command(1, 12) + b"\1", 17, 28), "needs 2 bytes, 1 are left"),
    "garbage after end": (a_command(1, 21) + b"x", "offset 27: no stream header"),
    "cut after a header": (a_command(1, 21)[:-1], "offset 17: cut short: a command header has 10"),
}  # fmt: skip


@pytest.mark.parametrize("choice", ["c", "python"])
@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(what: str, choice: Choice, tmp_path: Path) -> None:
    stream, message = BROKEN[what]
    if what == "too long":
        stream = stream[:-1]
    file = tmp_path / "broken.stream"
    file.write_bytes(stream)
    with twins.select(choice), pytest.raises(StreamError) as caught:
        list(read_stream(file))
    assert str(caught.value).startswith(f"{file}: offset {caught.value.offset}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_stream_cut_at_any_byte() -> None:
    stream = small_stream()
    ends = {STREAM_HEADER.size}
    for command in index_of(stream):
        ends.add(command)
    for size in range(len(stream)):
        results = {str(outcome(stream[:size], choice)) for choice in ("c", "python")}
        assert len(results) == 1
        assert ("cut short" in results.pop()) == (size not in ends), size


def index_of(stream: bytes) -> list[int]:
    """Where the commands of a stream end."""
    batch = index_stream(stream)
    return [int(end) for end in batch.offset + COMMAND_HEADER.size + batch.length]


@given(st.data())
def test_a_flipped_byte_is_found(data: st.DataObject) -> None:
    stream = bytearray(small_stream())
    at = data.draw(st.integers(0, len(stream) - 1))
    stream[at] ^= data.draw(st.integers(1, 255))
    results = [outcome(bytes(stream), choice) for choice in ("c", "python")]
    assert results[0] == results[1]
    # the version alone has no checksum: another valid one may go through
    another_version = at == len(MAGIC) and stream[at] in (1, 2, 3)
    assert isinstance(results[0], str) or another_version


@given(st.data())
def test_damage_behind_a_right_crc(data: st.DataObject) -> None:
    """The twins agree on what only a program that writes nonsense could make."""
    stream = bytearray(data.draw(streams()))
    batch = index_stream(bytes(stream))
    row = data.draw(st.integers(0, len(batch) - 1))
    start = int(batch.offset[row])
    end = start + COMMAND_HEADER.size + int(batch.length[row])
    for _ in range(data.draw(st.integers(1, 3))):
        stream[data.draw(st.integers(start + 4, end - 1))] ^= data.draw(st.integers(1, 255))
    end = data.draw(st.integers(start + COMMAND_HEADER.size, end))
    broken = reseal(bytes(stream[:end]), start, end) + stream[end:]
    assert outcome(broken, "c") == outcome(broken, "python")


@pytest.mark.claim("Any bytes are a stream or an error.", judge="unit")
@given(st.binary(max_size=64), st.booleans())
def test_anything_is_a_stream_or_an_error(garbage: bytes, header: bool) -> None:
    source = STREAM_HEADER.pack(MAGIC, 2) + garbage if header else garbage
    assert outcome(source, "c") == outcome(source, "python")


def test_the_writer_refuses_what_it_cannot_write() -> None:
    writer = StreamWriter(1)
    for name, values, message in [
        ("fallocate", {}, "no command fallocate in version 1"),
        ("nothing", {}, "no command nothing"),
        ("unlink", {"fileattr": 0}, "no attribute fileattr in version 1"),
        ("unlink", {"path": b"x" * 65536}, "path has 65536 bytes, at most 65535 fit"),
        ("mkfile", {"ino": -1}, "ino=-1"),
        ("subvol", {"uuid": bytes(15)}, "uuid has 15 bytes instead of 16"),
    ]:
        with pytest.raises(ValueError, match=message):
            writer.command(name, **values)
    with pytest.raises(ValueError, match="data has to be the last"):
        StreamWriter(2).command("write", data=b"", path=b"")
    with pytest.raises(ValueError, match="version 4"):
        StreamWriter(4)
    with pytest.raises(ValueError, match="version 0"):
        list(read_stream(b"", header=False, version=0))


@given(streams())
def test_written_is_what_was_read(stream: bytes) -> None:
    assert rewrite(stream) == stream
    assert outcome(stream, "c") == outcome(stream, "python")
