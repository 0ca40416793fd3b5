# SPDX-License-Identifier: GPL-2.0-only
"""One send by the C kernel: what a request is for :mod:`btrfs_model.native.send`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from btrfs_model.base.counters import counting
from btrfs_model.native import send as native
from btrfs_model.ondisk.stream import COMMANDS
from btrfs_model.questions.send.causes import PLACE, ROW
from btrfs_model.volume.compression import decompress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from btrfs_model.base.counters import Work
    from btrfs_model.questions.send.request import SendRequest
    from btrfs_model.volume.subvolume import Subvolume


def send(request: SendRequest) -> dict[str, int]:
    """Send; return the number of commands by name.

    Raises
    ------
    OSError, CorruptImageError
        See :func:`btrfs_model.questions.send.ioctl.send`.
    """
    return _by_name(native.send(_asked(request))[1])


def side_by_side(requests: Sequence[SendRequest]) -> list[tuple[dict[str, int], Work] | OSError]:
    """Do as :func:`send` for each, in turns; see :func:`btrfs_model.native.send.side_by_side`."""
    told: list[tuple[dict[str, int], Work] | OSError] = []
    for one in native.side_by_side([_asked(request) for request in requests]):
        if isinstance(one, OSError):
            told.append(one)
            continue
        commands, counts = one
        with counting() as work:
            for name, times in counts.items():
                work.count(name, times)
        told.append((_by_name(commands), work))
    return told


def _by_name(counts: Sequence[int]) -> dict[str, int]:
    return {
        command.name: count for command in COMMANDS.values() if (count := counts[command.number])
    }


def walk(request: SendRequest) -> bool:
    """Read the tree blocks that a full send reads, without the stream.

    Returns whether that could be told; False where it takes :func:`send`.
    Raises OSError, CorruptImageError: as :func:`send`.
    """
    return native.send(_asked(request), reads_only=True)[0]


def _asked(request: SendRequest) -> native.Asked:
    opened = [subvolume.id for subvolume in request.clone_roots]
    if request.parent is not None:
        opened.append(request.parent.id)
    explanation, sectorsize = request.explanation, request.fs.image.sectorsize

    def explain(rows: bytes, places: bytes) -> None:
        assert explanation is not None
        explanation.rows = np.frombuffer(rows, ROW)
        explanation.places = np.frombuffer(places, PLACE)

    return native.Asked(
        request.fs.forest(opened).native,
        None if request.parent is None else _root(request.parent),
        [_root(subvolume) for subvolume in request.clone_roots],
        native.Callbacks(
            request.write,
            request.estimate,
            lambda kind, data, size: decompress(kind, data, size, sectorsize),
            None if explanation is None else explain,
        ),
        known=request.known,
        send_root=request.snapshot.id,
        behaviour=request.behaviour.bits,
        flags=sum(bit for name, bit in native.FLAGS.items() if getattr(request, name)),
        proto=request.proto,
        limits={name: request.limits.turned(name) for name in native.SEND_LIMITS},
    )


def _root(subvolume: Subvolume) -> native.Root:
    item = subvolume.item
    return (
        subvolume.id, item.ctransid,
        item.received_uuid if any(item.received_uuid) else item.uuid,
    )  # fmt: skip
