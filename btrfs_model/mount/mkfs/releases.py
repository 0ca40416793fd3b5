# SPDX-License-Identifier: GPL-2.0-only
"""In what the mkfs.btrfs of one release of btrfs-progs differs from that of another.

Chunks and smallest devices are the same in all of them. Releases between two of these were not
compared.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Release(NamedTuple):
    """A release of btrfs-progs.

    `name`: its number.
    `rebuilds`: the uuid tree is made at the end, in two transactions more; then the device has
    statistics, the superblock says where nodes are larger than pages, and the tree of relocation
    has all its times.
    `forgets_first_chunks`: the free space tree has no entries of the chunks that are gone.
    `fills_first`: files come in before chunks that are not needed go.
    `block_group_tree`: by default.
    `reproducible`: it heeds the variables ``SOURCE_DATE_EPOCH`` and ``DETERMINISTIC_SEED``, and
    calls all nodes larger than pages.
    """

    name: str
    rebuilds: bool
    forgets_first_chunks: bool
    fills_first: bool
    block_group_tree: bool
    reproducible: bool

    @property
    def generation(self) -> int:
        """Transaction that the superblock is of."""
        return 8 if self.rebuilds else 6


RELEASES: Final = {
    one.name: one
    for one in (
        Release("6.2", False, False, False, False, False),
        Release("6.14", True, False, True, False, False),
        Release("6.19", True, True, True, True, False),
        Release("7.3", True, True, True, True, True),
    )
}
"""The releases whose filesystems were compared with those of the model, ascending."""


def release(name: str) -> Release:
    """Return a release by its number.

    Raises ValueError: for one that does not exist here.
    """
    if name not in RELEASES:
        raise ValueError(f"btrfs-progs {name!r} is none of {', '.join(RELEASES)}")
    return RELEASES[name]
