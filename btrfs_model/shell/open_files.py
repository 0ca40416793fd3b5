# SPDX-License-Identifier: GPL-2.0-only
"""The open files of a shell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from btrfs_model.shell.streams import Stream

Replaced: TypeAlias = "dict[int, Stream | None]"
"""What numbers had before redirections of a command."""


class Files(dict[int, "Stream"]):
    """The open files of a shell, by number."""

    def __init__(self, files: Mapping[int, Stream]) -> None:
        super().__init__(files)
        for one in self.values():
            one.hold()

    def put(self, number: int, stream: Stream | None, replaced: Replaced | None = None) -> None:
        """Give a number a file, or close it; what it had goes to `replaced`, or is let go."""
        if stream is not None:
            stream.hold()
        old = self.pop(number, None)
        if stream is not None:
            self[number] = stream
        if replaced is not None and number not in replaced:
            replaced[number] = old
        elif old is not None:
            old.release()

    def restore(self, replaced: Replaced) -> None:
        """Give numbers back what they had."""
        for number, old in replaced.items():
            self.put(number, old)
        self.forget(replaced)

    def forget(self, replaced: Replaced) -> None:
        """Let go of what numbers had."""
        for old in replaced.values():
            if old is not None:
                old.release()

    def close(self) -> None:
        """Close all."""
        for number in list(self):
            self.put(number, None)
