# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel and the model say of a file that is being changed, in a form to be compared.

Where an extent lies on disk is left out: what was freed when decides on that. Two extents that
touch on disk are reported as one, so those that touch in the file are joined. References come in
the order of the leaves on disk; an extent has none while nobody has written its item, which threads
do when they come to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from btrfs_model.kernels.inside.operations import Mapped

_LAST = 1


def comparable_maps(kernel: Mapped, model: Mapped, roots: Mapping[int, int]) -> tuple[Any, Any]:
    """Return what both say; references only where both report the same pieces.

    `roots`: ids of the kernel's subvolumes, as the model calls them: inodes of the free space cache
    have numbers between them.
    """
    its, mine = joined(kernel), joined(model)
    if _pieces(kernel) != _pieces(model):
        return its, mine
    both = [
        (
            sorted([ino, at, roots.get(root, root)] for ino, at, root in theirs),
            sorted(map(list, ours)),
        )
        for theirs, ours in zip(kernel["references"], model["references"], strict=True)
        if not isinstance(theirs, int) and not isinstance(ours, int)
    ]
    return (its, [theirs for theirs, _ in both]), (mine, [ours for _, ours in both])


def joined(mapped: Mapped) -> list[list[Any]]:
    """Start, end, flags and whether it has a place of each extent; in the end the last flag."""
    found: list[list[Any]] = []
    for logical, physical, length, flags in mapped["extents"]:
        row = [logical, logical + length, flags & ~_LAST, physical > 0]
        if found and found[-1][1:] == [logical, *row[2:]]:
            found[-1][1] = logical + length
        else:
            found.append(row)
    return [*found, [flags & _LAST for *_, flags in mapped["extents"][-1:]]]


def _pieces(mapped: Mapped) -> list[tuple[int, bool]]:
    """Where the pieces that are reported begin, and which have a place: those that are asked of."""
    return [(logical, physical > 0) for logical, physical, _, _ in mapped["extents"]]
