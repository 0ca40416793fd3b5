# SPDX-License-Identifier: GPL-2.0-only
"""A large stream reads as any other, though its next commands are found ahead of time."""

import io
import threading

import pytest

from btrfs_model.base.errors import StreamError
from btrfs_model.stream.index import BATCH_COMMANDS, read_batches
from btrfs_model.stream.reader import command_of, read_stream
from btrfs_model.stream.writer import StreamWriter

COUNT = 3 * BATCH_COMMANDS + 5


@pytest.fixture(scope="module")
def stream() -> bytes:
    writer = StreamWriter(version=1)
    commands = [writer.command("unlink", path=b"name %d" % number) for number in range(COUNT)]
    return writer.header() + b"".join(commands) + writer.end()


def paths(source: object) -> list[object]:
    return [command.attributes.get("path") for command in read_stream(source)]  # type: ignore[arg-type]


def test_a_stream_in_memory_reads_as_one_from_a_pipe(stream: bytes) -> None:
    assert len(stream) > 1 << 20
    found = paths(stream)
    assert found == paths(io.BytesIO(stream))
    assert found == [*(b"name %d" % number for number in range(COUNT)), None]


def test_damage_is_found_behind_all_commands_before_it(stream: bytes) -> None:
    at = stream.index(b"name %d" % (2 * BATCH_COMMANDS + 7))
    damaged = stream[:at] + b"N" + stream[at + 1 :]
    found = []
    with pytest.raises(StreamError, match="bad crc"):
        for batch in read_batches(damaged):
            found.append(len(batch))
    assert sum(found) == 2 * BATCH_COMMANDS + 7


def test_no_thread_stays_when_somebody_stops_reading(stream: bytes) -> None:
    before = threading.active_count()
    batches = read_batches(stream)
    next(batches)
    assert threading.active_count() > before
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_one_command_of_a_batch_is_what_it_is_among_all(stream: bytes) -> None:
    *_, batch = read_batches(stream)
    expected = list(read_stream(stream))[-len(batch) :]
    assert [command_of(batch, row) for row in range(len(batch))] == expected
