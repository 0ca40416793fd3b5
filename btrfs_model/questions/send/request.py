# SPDX-License-Identifier: GPL-2.0-only
"""What a send is asked for (``struct btrfs_ioctl_send_args``), after the checks of the ioctl."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from btrfs_model.behaviour import Behaviour
    from btrfs_model.limits import Limits
    from btrfs_model.native.send import Known
    from btrfs_model.ondisk.layout import Payload
    from btrfs_model.volume.filesystem import Filesystem
    from btrfs_model.volume.subvolume import Subvolume


class Explanation(Protocol):
    """Where it is noted why each command was sent.

    `rows`: one of ``causes.ROW`` for each.
    `places`: places that data might be cloned from, of ``causes.PLACE``.
    """

    rows: NDArray[Any]
    places: NDArray[Any]


@dataclass(frozen=True)
class SendRequest:
    """What a send was asked for, after all checks.

    `fs`: where the snapshot is.
    `snapshot`: what is sent.
    `parent`: what the receiver has already.
    `clone_sources`: what the receiver has besides, as the ioctl gets it.
    `behaviour`: the kernel.
    `limits`: how much it remembers and reads ahead, with what its toggles decide about filled in.
    `proto`: version of the stream.
    `no_file_data`, `compressed`, `omit_header`, `omit_end`: the flags of the ioctl.
    `estimate`: takes the size of the stream, or of what `write` did not get of it, where the size
    alone is asked for, so that no file data need be read.
    `write`: takes the stream piece by piece; a piece is there during the call only.
    `known`: what sends before it found, where several follow each other.
    `explanation`: notes why each command is sent, where that is asked for.
    """

    fs: Filesystem
    snapshot: Subvolume
    parent: Subvolume | None
    clone_sources: list[Subvolume]
    behaviour: Behaviour
    limits: Limits
    proto: int
    no_file_data: bool
    compressed: bool
    omit_header: bool
    omit_end: bool
    estimate: Callable[[int], object] | None
    write: Callable[[Payload], object]
    explanation: Explanation | None
    known: Known | None = None

    @property
    def clone_roots(self) -> list[Subvolume]:
        """The clone sources and the snapshot itself, ascending by id; some may be twice."""
        return sorted([self.snapshot, *self.clone_sources], key=lambda source: source.id)
