# SPDX-License-Identifier: GPL-2.0-only
"""Where a stream goes: a file, standard output, the rest of one alone, or several files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from btrfs_model.base.whole_file import naming
from btrfs_model.cli.common import STDOUT, note, stdout, write_json

if TYPE_CHECKING:
    from hashlib import _Hash


def opened(out: Path | None, skipped: int, most: int | None) -> AbstractContextManager[BinaryIO]:
    """Open where a stream goes; `most`: bytes of a file where it goes to several."""
    return sink(out, skipped) if most is None or out is None else in_parts(out, most)


@contextmanager
def sink(out: Path | None, skipped: int) -> Iterator[BinaryIO]:
    """Open where a stream goes; when the send fails, say that a part of it is there.

    `out`: standard output without it.
    `skipped`: bytes at its beginning that are not written.
    Raises BtrfsModelError: where the stream has fewer.
    """
    from btrfs_model.base.errors import BtrfsModelError

    where = STDOUT if out is None else str(out)
    with naming(where), ExitStack() as stack:
        counted = _Counted(
            stdout if out is None else lambda: stack.enter_context(out.open("wb")), skipped
        )
        try:
            yield cast(BinaryIO, counted)
            if counted.sent < skipped:
                raise BtrfsModelError(f"the stream ends before that, at byte {counted.sent}")
            counted.flush()
        except Exception as error:
            if counted.size:
                error.add_note(f"{where}: incomplete, the stream ends after {counted.sent} bytes")
            raise


class _Counted:
    """A file that is opened when it is first written to, and counts what is."""

    def __init__(self, open_file: Callable[[], BinaryIO], skipped: int) -> None:
        self._open = open_file
        self._file: BinaryIO | None = None
        self._skipped = skipped
        self.sent = self.size = 0

    def write(self, data: bytes) -> int:
        first = max(0, self._skipped - self.sent)
        self.sent += len(data)
        if first < len(data):
            if self._file is None:
                self._file = self._open()
            self.size += self._file.write(memoryview(data)[first:])
        return len(data)

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()


@contextmanager
def in_parts(out: Path, most: int) -> Iterator[BinaryIO]:
    """Write a stream as files of at most `most` bytes, and beside them what they are.

    ``OUT.json`` has the size and sha256 of the stream and of each file, and comes last: without it
    the files are not all there.
    """
    parts = _Parts(out, most)
    manifest = out.with_name(f"{out.name}.json")
    manifest.unlink(missing_ok=True)
    try:
        with closing(parts):
            yield cast(BinaryIO, parts)
    except Exception as error:
        if parts.written:
            error.add_note(f"{out}: incomplete, so there is no {manifest.name}")
        raise
    size = sum(part["bytes"] for part in parts.written)
    stream = {"bytes": size, "sha256": parts.whole.hexdigest()}
    write_json(manifest, {"stream": stream, "parts": parts.written})
    if (after := parts.name()).exists():
        note(f"{after} is of another stream")


class _Parts:
    """A file that goes on in another one when it is full."""

    def __init__(self, out: Path, most: int) -> None:
        self._out, self._most = out, most
        self._file: BinaryIO | None = None
        self._digest: _Hash = hashlib.sha256()
        self.whole = hashlib.sha256()
        self.written: list[dict[str, Any]] = []

    def name(self) -> Path:
        """Name of the next file."""
        return self._out.with_name(f"{self._out.name}.{len(self.written):03d}")

    def _last(self) -> Path:
        return self._out.with_name(self.written[-1]["file"])

    def write(self, data: bytes) -> int:
        left = memoryview(data)
        while len(left):
            if self._file is None:
                path = self.name()
                self._file, self._digest = path.open("wb"), hashlib.sha256()
                self.written.append({"file": path.name, "bytes": 0})
            part = left[: self._most - self.written[-1]["bytes"]]
            with naming(self._last()):
                self._file.write(part)
            self._digest.update(part)
            self.whole.update(part)
            self.written[-1]["bytes"] += len(part)
            left = left[len(part) :]
            if self.written[-1]["bytes"] == self._most:
                self.close()
        return len(data)

    def flush(self) -> None:
        if self._file is not None:
            with naming(self._last()):
                self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with naming(self._last()):
                file.close()
            self.written[-1]["sha256"] = self._digest.hexdigest()
