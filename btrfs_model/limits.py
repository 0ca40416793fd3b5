# SPDX-License-Identifier: GPL-2.0-only
"""Sizes of the kernel's caches and readahead windows.

A behaviour switches features; a limit sizes them.

::

    >>> Limits(dir_utimes_cache=4).of_kernel(Behaviour.parse("v6.12")).clone_refs
    1024
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

from btrfs_model.base.arguments import checked
from btrfs_model.behaviour import Behaviour
from btrfs_model.patches import Patch

_READAHEAD: Final = (
    "distance", "near", "always_leaves", "always_nodes", "compare_leaves", "compare_nodes",
    "siblings",
)  # fmt: skip
"""Limits that may be 0, of 64 bits; the others are numbers of entries."""
_MOST_ENTRIES: Final = 1 << 24
_NO_LIMIT: Final = 2**64 - 1
"""Of references, which are counted by 64 bits."""


@dataclass(frozen=True)
class Limits:
    """Sizes of caches and windows of a kernel; the defaults are those of Linux 5.10 to 6.18.

    Bytes of readahead count blocks asked for, whether they were cached or not. A search stops once
    it asked for more than its limit, the comparison of two trees once it asked for as much as that.

    Attributes
    ----------
    distance : int
        Bytes. READA_FORWARD and READA_BACK take siblings of a leaf up to so far from it
        (``reada_for_search()``, ctree.c).
    near : int
        Bytes. How much they ask for (``nread_max`` there).
    always_leaves, always_nodes : int
        Bytes. How much READA_FORWARD_ALWAYS asks for, of leaves and at higher levels (likewise).
    compare_leaves, compare_nodes : int
        Bytes. The same for the comparison of two trees (``tree_move_down()``, send.c).
    siblings : int
        A search looks at one more sibling than these (``nscan`` in ``reada_for_search()``).
    name_cache : int
        Names that a send remembers: ``SEND_MAX_NAME_CACHE_SIZE`` (send.c, since 6.3),
        ``SEND_CTX_NAME_CACHE_CLEAN_SIZE`` before.
    name_cache_kept : int
        Names that stayed when that was full, before 6.3: ``SEND_CTX_MAX_NAME_CACHE_SIZE``.
    dir_created_cache : int
        Directories that a send knows it created: ``SEND_MAX_DIR_CREATED_CACHE_SIZE``.
    dir_utimes_cache : int
        Directories whose times are put off: ``SEND_MAX_DIR_UTIMES_CACHE_SIZE``.
    backref_cache : int
        Leaves of which a send knows the clone roots: ``SEND_MAX_BACKREF_CACHE_SIZE``.
    backref_cache_roots : int
        Most clone roots of such a leaf: ``SEND_MAX_BACKREF_CACHE_ROOTS``, 17, and 12 without
        ``send-backref-cache-17``.
    clone_refs : int
        An extent with more references is not cloned: ``SEND_MAX_EXTENT_REFS``, 1024, and 64 without
        ``send-clone-refs-1024``; without ``send-clone-refs-64`` there is no limit.
    fiemap_entries : int
        Extents that FIEMAP gathers between two searches, since 6.9: as many
        ``struct btrfs_fiemap_entry`` as a page of 4096 bytes holds (fiemap.c).
    fiemap_prev_extents : int
        Extents whose sharing one call remembers: ``BTRFS_BACKREF_CTX_PREV_EXTENTS_SIZE``
        (backref.h).

    `always_nodes` and `compare_nodes` are the size of a node when None, `backref_cache_roots` and
    `clone_refs` what the kernel's toggles say.
    """

    distance: int = 65536
    near: int = 65536
    always_leaves: int = 131072
    always_nodes: int | None = None
    compare_leaves: int = 131072
    compare_nodes: int | None = None
    siblings: int = 32
    name_cache: int = 256
    name_cache_kept: int = 128
    dir_created_cache: int = 64
    dir_utimes_cache: int = 64
    backref_cache: int = 128
    backref_cache_roots: int | None = None
    clone_refs: int | None = None
    fiemap_entries: int = 128
    fiemap_prev_extents: int = 8

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least, most = (0, 2**63) if name in _READAHEAD else (1, _MOST_ENTRIES)
            most = most if value != _NO_LIMIT or name != "clone_refs" else 2**64
            if value is not None and not least <= value < most:
                raise ValueError(f"limits: {name} is {value}, which is not in [{least}, {most:,})")

    @classmethod
    def of(cls, given: Limits | Mapping[str, int] | None) -> Limits:
        """Return limits by name, with the kernel's in place of those that are not given.

        Raises
        ------
        TypeError
            For a limit that there is not.
        ValueError
            For one that is out of its range.
        """
        if given is None:
            return _KERNELS
        return given if isinstance(given, Limits) else checked(cls)(**given)

    def given(self) -> dict[str, int]:
        """Return the limits that are not the kernel's, by name."""
        mine, kernels = asdict(self), asdict(_KERNELS)
        return {name: value for name, value in mine.items() if value != kernels[name]}

    def of_kernel(self, behaviour: Behaviour) -> Limits:
        """Return the limits with those filled in that the kernel's toggles decide about."""
        toggled = {
            "backref_cache_roots": 17 if Patch.SEND_BACKREF_CACHE_17 in behaviour else 12,
            "clone_refs": _clone_refs(behaviour),
        }
        return replace(self, **{one: it for one, it in toggled.items() if self.turned(one) is None})

    def turned(self, name: str) -> int | None:
        """Return a limit by its name."""
        value: int | None = getattr(self, name)
        return value

    def readahead(self, nodesize: int) -> dict[str, int]:
        """Return the limits of readahead, for tree blocks of a size."""
        values = {name: self.turned(name) for name in _READAHEAD}
        return {name: nodesize if value is None else value for name, value in values.items()}


def _clone_refs(behaviour: Behaviour) -> int:
    """Return ``SEND_MAX_EXTENT_REFS`` of a kernel."""
    if Patch.SEND_CLONE_REFS_64 not in behaviour:
        return _NO_LIMIT
    return 1024 if Patch.SEND_CLONE_REFS_1024 in behaviour else 64


_KERNELS: Final = Limits()
NAMES: Final = tuple(field.name for field in fields(Limits))
"""Names of all limits."""
