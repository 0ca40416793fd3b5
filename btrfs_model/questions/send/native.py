# SPDX-License-Identifier: GPL-2.0-only
"""One send by the C kernel: what a request is for :mod:`btrfs_model.native.send`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.native.send import SEND_LIMITS, Root, Send
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.reference.send.causes import ROW
from btrfs_model.volume.compression import decompress
from btrfs_model.volume.forest import Forest

if TYPE_CHECKING:
    from btrfs_model.reference.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume


class Sender:
    """One send.

    Parameters
    ----------
    request : SendRequest
        What to send, checked.
    """

    def __init__(self, request: SendRequest) -> None:
        self.request = request

    def run(self) -> dict[str, int]:
        """Send; return the number of commands by name.

        Raises
        ------
        OSError, CorruptImageError
            See :func:`btrfs_model.questions.send.send`.
        """
        counts = self._send().run()
        return {
            command.name: count
            for command in COMMANDS.values()
            if (count := counts[command.number])
        }

    def walk(self) -> bool:
        """Read the tree blocks that a full send reads, without the stream.

        Returns
        -------
        bool
            Whether that could be told; False where it takes :meth:`run`.

        Raises
        ------
        OSError, CorruptImageError
            As :meth:`run`.
        """
        return self._send().walk()

    def _send(self) -> Send:
        request = self.request
        opened = [subvolume.id for subvolume in request.clone_roots]
        if request.parent is not None:
            opened.append(request.parent.id)
        return Send(
            forest=Forest.of(request.fs, opened).native,
            send_root=request.snapshot.id,
            parent=None if request.parent is None else _root(request.parent),
            clone_roots=[_root(subvolume) for subvolume in request.clone_roots],
            behaviour=request.behaviour.bits,
            limits={name: request.limits.turned(name) for name in SEND_LIMITS},
            proto=request.proto,
            no_file_data=request.no_file_data,
            omit_header=request.omit_header,
            omit_end=request.omit_end,
            compressed=request.compressed,
            write=request.write,
            decompress=self._decompress,
            explain=None if request.explanation is None else self._explain,
        )

    def _decompress(self, kind: int, data: bytes, size: int) -> bytes:
        return decompress(kind, data, size, self.request.fs.image.sectorsize)

    def _explain(self, rows: bytes) -> None:
        assert self.request.explanation is not None
        self.request.explanation.rows = np.frombuffer(rows, ROW)


def _root(subvolume: Subvolume) -> Root:
    item = subvolume.item
    return (
        subvolume.id, item.ctransid,
        item.received_uuid if any(item.received_uuid) else item.uuid,
    )  # fmt: skip
