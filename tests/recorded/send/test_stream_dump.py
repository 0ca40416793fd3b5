# SPDX-License-Identifier: GPL-2.0-only
"""Streams as text, equal to ``btrfs receive --dump``, and as JSON."""

import base64
import io
import json
import os
import time
from typing import Any

import corpus
import google_crc32c
import hypothesis.strategies as st
import pytest
import twins
from hypothesis import given, settings
from progs import needs_progs
from streams import (
    options_of,
    our_dump,
    progs_dump,
    progs_escapes_all,
    stream_files,
    streams,
)

from btrfs_model.base.errors import StreamError
from btrfs_model.ondisk.stream import MAGIC, STREAM_HEADER
from btrfs_model.stream.dump import dump_json, dump_text
from btrfs_model.stream.reader import read_stream
from btrfs_model.stream.writer import StreamWriter

ZONES = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "XYZ-3:17:05", ""]


@pytest.fixture(autouse=True)
def utc() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        yield
    time.tzset()


def whole(stream: bytes) -> bytes:
    """A stream with header and end, for btrfs-progs, which takes no other."""
    options = options_of(stream)
    writer = StreamWriter(options.get("version", 1))
    header = b"" if stream.startswith(MAGIC) else writer.header()
    return header + stream + (b"" if stream.endswith(writer.end()) else writer.end())


@pytest.mark.claim("`dump-stream` prints what `btrfs receive --dump` prints.", judge="progs")
@needs_progs
@pytest.mark.parametrize("case", corpus.cases("send"))
def test_text_of_every_real_stream(case: str) -> None:
    escape_all = progs_escapes_all()
    for number, file in enumerate(stream_files(case)):
        stream = corpus.stream(case, file)
        options = options_of(stream)
        expected = progs_dump(whole(stream))
        assert expected[1], file
        assert our_dump(stream, escape_all=escape_all, **options) == expected, file
        if number % 8 == 0:
            with twins.select("python"):
                assert our_dump(stream, escape_all=escape_all, **options) == expected, file


@needs_progs
@settings(max_examples=60)
@given(streams(versions=(1, 2)))
def test_text_of_random_streams(stream: bytes) -> None:
    for choice in ("c", "python"):
        with twins.select(choice):
            assert our_dump(stream, escape_all=progs_escapes_all()) == progs_dump(stream)


@given(streams())
def test_c_and_python_write_the_same(stream: bytes) -> None:
    for escape_all in (False, True):
        found = []
        for choice in ("c", "python"):
            out = io.BytesIO()
            with twins.select(choice):
                try:
                    dump_text(stream, out, escape_all=escape_all)
                except StreamError as error:
                    out.write(str(error).encode())
            found.append(out.getvalue())
        assert found[0] == found[1]


@needs_progs
@pytest.mark.parametrize("zone", ZONES)
def test_times_are_local(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Around changes of the clock, before 1970, in years that are not of four digits."""
    monkeypatch.setenv("TZ", zone)
    writer = StreamWriter()
    clock_changes = [1711846800, 1729990800, 0, -2177452800]
    odd_years = [253402300800, -62135596800, 1 << 36, -1 << 36]
    steps = (-901, -1, 0, 1, 59, 899, 900)
    seconds = [second + step for second in clock_changes + odd_years for step in steps]
    times = [{"path": b"f", "atime": (s, 1), "mtime": (s + 450, 2), "ctime": (s - 86400, 3)}
             for s in seconds]  # fmt: skip
    body = [writer.command("utimes", **values) for values in times]
    stream = b"".join([writer.header(), *body, writer.end()])
    for choice in ("c", "python"):
        with twins.select(choice):
            assert our_dump(stream) == progs_dump(stream, zone)


@given(st.lists(st.integers(-(2**33), 2**34), min_size=1, max_size=9), st.sampled_from(ZONES))
def test_times_are_the_same_in_c_and_python(seconds: list[int], zone: str) -> None:
    writer = StreamWriter()
    body = [writer.command("utimes", path=b"", atime=(second, 0), mtime=(second // 2, 0),
                           ctime=(second // 3, 0)) for second in seconds]  # fmt: skip
    stream = b"".join([writer.header(), *body, writer.end()])
    os.environ["TZ"] = zone
    with twins.select("python"):
        expected = our_dump(stream)
    assert our_dump(stream) == expected


def cut_streams() -> list[bytes]:
    writer = StreamWriter()
    body = writer.command("mkdir", path=b"d", ino=257) + writer.command("rmdir", path=b"d")
    stream = writer.header() + body + writer.end()
    return [stream[:size] for size in range(len(stream))]


@needs_progs
def test_text_of_a_cut_stream_goes_as_far_as_that_of_progs() -> None:
    for stream in cut_streams():
        for choice in ("c", "python"):
            with twins.select(choice):
                assert our_dump(stream) == progs_dump(stream), len(stream)


@needs_progs
def test_text_of_a_broken_stream_goes_as_far_as_that_of_progs() -> None:
    stream = cut_streams()[-1]
    for at in range(len(stream)):
        if not len(MAGIC) <= at < STREAM_HEADER.size:
            broken = stream[:at] + bytes([stream[at] ^ 1]) + stream[at + 1 :]
            assert our_dump(broken) == progs_dump(broken), at


@needs_progs
@pytest.mark.parametrize("length", [4085, 4086, 4087, 4088, 4089])
@pytest.mark.parametrize("command", ["mkfile", "rename", "clone"])
def test_paths_about_as_long_as_can_be(command: str, length: int) -> None:
    writer = StreamWriter()
    path, source = b"p" * length, b"q" * (4000 if command == "mkfile" else length)
    values: dict[str, dict[str, Any]] = {
        "mkfile": {"path": path, "ino": 257},
        "rename": {"path": b"f", "path_to": path},
        "clone": {"file_offset": 0, "clone_len": 2**31, "path": b"f", "clone_uuid": bytes(16),
                  "clone_ctransid": 7, "clone_path": source, "clone_offset": 0},
    }  # fmt: skip
    stream = b"".join([
        writer.header(), writer.command("subvol", path=b"s/", uuid=bytes(16), ctransid=1),
        writer.command("unlink", path=b""), writer.command(command, **values[command]),
        writer.end(),
    ])  # fmt: skip
    for choice in ("c", "python"):
        with twins.select(choice):
            assert our_dump(stream) == progs_dump(stream)


def test_the_errors_of_text_are_named() -> None:
    writer = StreamWriter()
    long_path = writer.header() + writer.command("unlink", path=b"p" * 5000)
    bad_time = writer.header() + writer.command(
        "utimes", path=b"", atime=(0, 0), mtime=(2**63 - 1, 0), ctime=(0, 0)
    )
    no_end = writer.header() + writer.command("unlink", path=b"p")
    for stream, message in [
        (long_path, "offset 17: command unlink: path is too long: 5003 of 4096 bytes"),
        (bad_time, "offset 17: command utimes: mtime of 9223372036854775807 seconds has no date"),
        (no_end, "offset 32: the stream stops without the command end"),
    ]:
        for choice in ("c", "python"):
            with twins.select(choice), pytest.raises(StreamError, match=message):
                dump_text(stream, io.BytesIO())


def test_text_of_later_btrfs_progs() -> None:
    """As cmds/receive-dump.c of btrfs-progs 6.9.1 writes it."""
    writer = StreamWriter(2)
    values: dict[str, Any] = {
        "path": b"f", "file_offset": 1, "unencoded_file_len": 2, "unencoded_len": 3,
        "unencoded_offset": 4, "compression": 5, "data": b"123456",
    }  # fmt: skip
    xattr = writer.command("set_xattr", path=b"f", xattr_name=b"user.a b", xattr_data=b"x\0\n")
    stream = b"".join([writer.header(), xattr, writer.command("encoded_write", **values),
                       writer.command("remove_xattr", path=b"f", xattr_name=b"\t"),
                       writer.end()])  # fmt: skip
    lines = our_dump(stream, escape_all=True)[0].decode().splitlines()
    assert [line[48:] for line in lines] == [
        r"name=user.a\ b x\000\n len=3",
        "offset=1 len=6 unencoded_file_len=2 unencoded_len=3 unencoded_offset=4 compression=5"
        " encryption=0",
        r"name=\t",
    ]


@needs_progs
def test_the_first_of_several_streams_or_all() -> None:
    writer = StreamWriter()
    parts = [writer.header() + writer.command("unlink", path=name) + writer.end()
             for name in (b"a", b"b")]  # fmt: skip
    both = b"".join(parts)
    assert our_dump(both) == progs_dump(both) == progs_dump(parts[0])
    for choice in ("c", "python"):
        with twins.select(choice):
            text = progs_dump(parts[0])[0] + progs_dump(parts[1])[0]
            assert our_dump(both, all_streams=True) == (text, True)


def test_more_text_than_one_buffer_holds() -> None:
    writer = StreamWriter()
    name = b"\xff" * 4000
    body = writer.command("symlink", path=name, ino=257, path_link=b"\n" * 60_000) * 100
    text, good = our_dump(writer.header() + body + writer.end())
    assert good
    assert text.count(b"\n") == 100
    assert len(set(text.splitlines())) == 1
    assert len(text.splitlines()[0]) == 16 + 2 + 4 * 4000 + 1 + len("dest=") + 2 * 60_000


# ------------------------------------------------------------------------- JSON


def json_lines(stream: bytes, **options: Any) -> list[dict[str, Any]]:
    out = io.BytesIO()
    dump_json(stream, out, **options)
    return [json.loads(line) for line in out.getvalue().decode("ascii").splitlines()]


@given(streams())
def test_json_says_all(stream: bytes) -> None:
    """A program can make the stream again from its JSON."""
    writer = StreamWriter(stream[len(MAGIC)])
    assert writer.header() + b"".join(map(from_json, json_lines(stream, data=True))) == stream


def from_json(line: dict[str, Any]) -> bytes:
    values = {}
    for name, value in line["attributes"].items():
        if name in ("uuid", "clone_uuid"):
            values[name] = bytes.fromhex(value.replace("-", ""))
        elif isinstance(value, str):
            values[name] = os.fsencode(value)
        elif isinstance(value, dict) and "sec" in value:
            values[name] = value["sec"], value["nsec"]
        elif isinstance(value, dict):
            values[name] = base64.b64decode(value["base64"])
            assert len(values[name]) == value["length"]
        else:
            values[name] = value
    return StreamWriter(line["version"]).command(line["command"], **values)


def test_json_of_a_real_stream() -> None:
    stream = corpus.stream("send/send-utimes/n200", "6.18.stream.zst")
    lines = json_lines(stream)
    commands = list(read_stream(stream))
    assert [(line["command"], line["offset"]) for line in lines] == [
        (command.name, command.offset) for command in commands
    ]
    assert [list(line["attributes"]) for line in lines] == [
        list(command.attributes) for command in commands
    ]


def test_json_of_data_and_odd_names() -> None:
    writer = StreamWriter()
    write = writer.command("write", path=b"\xffx\xc3\xa4", file_offset=7, data=b"hello")
    stream = writer.header() + write + writer.end()
    line, end = json_lines(stream)
    crc = f"{google_crc32c.value(b'hello'):08x}"
    assert line == {
        "command": "write", "offset": 17, "version": 1,
        "attributes": {"path": "\udcffxä", "file_offset": 7,
                       "data": {"length": 5, "crc32c": crc}},
    }  # fmt: skip
    assert end["attributes"] == {}
    with pytest.raises(StreamError, match="without the command end"):
        json_lines(stream[: end["offset"]])
    with pytest.raises(StreamError, match="cut short: command write"):
        json_lines(stream[: end["offset"] - 1])
