# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel does, as a set of toggles.

A *behaviour* is a set of toggles; a *preset* names the behaviour of a kernel::

    >>> behaviour = Behaviour.parse("v6.12 - send-utimes-cache")
    >>> Patch.SEND_UTIMES_CACHE in behaviour
    False

A plain release (``v6.12``) has the toggles of all commits up to it. A stable kernel (``v6.12.101``)
has those backported to it as well.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import (
    BehaviourWarning,
    BtrfsModelError,
    UnknownBehaviourError,
    UnknownNameError,
)
from btrfs_model.base.nearest import did_you_mean
from btrfs_model.base.tables import html_table
from btrfs_model.kernels import lib
from btrfs_model.patches import IN_PYTHON_ALONE, Patch

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PRESETS", "Behaviour", "is_implemented", "table"]

_BY_SLUG: Final = {str(patch): patch for patch in Patch}

# What Debian's and the stable trees' kernels have beyond the release of their name.
_BACKPORTS: dict[str, tuple[Patch, ...]] = {
    "v5.10.46": (Patch.SEND_RMDIR_GENERATION,),
    "v5.10.223": (
        Patch.LOG_SUB_TRANS,
        Patch.SEND_RMDIR_GENERATION,
        Patch.SEND_UNLINK_PATH,
        Patch.LOG_NEW_NAME_LOGGED,
        Patch.LOG_PREALLOC_FULL,
        Patch.LOG_SYMLINKS_FULL,
        Patch.SEND_CLONE_SRC_EOF,
        Patch.FIEMAP_JOIN_NO_START,
    ),
    "v6.1.176": (
        Patch.OPENDIR_LAST_INDEX,
        Patch.FIEMAP_JOIN_NO_START,
        Patch.SEND_TRAILING_HOLE,
        Patch.SEND_CLONE_UNALIGNED_TAIL,
        Patch.SEND_TRUNCATE_BEFORE_CLONE,
        Patch.SEND_PUNCH_HOLE,
        Patch.SEND_INLINE_NOT_HOLE,
        Patch.LOG_MOVED_CONFLICTS,
        Patch.LOG_NEW_NAME_DENTRIES,
        Patch.LOG_OLD_CONFLICTS,
        Patch.LOG_LAST_INDEX_ON_INSERT,
        Patch.LOG_RMDIR_MARK,
        Patch.LOG_RMDIR_COMMITS,
    ),
    "v6.12.101": (
        Patch.SEND_CUR_INODE_PATH,
        Patch.SEND_PUNCH_HOLE,
        Patch.SEND_INLINE_NOT_HOLE,
        Patch.LOG_MOVED_CONFLICTS,
        Patch.LOG_NEW_NAME_DENTRIES,
        Patch.LOG_OLD_CONFLICTS,
        Patch.LOG_CONFLICT_DENTRIES,
        Patch.LOG_RMDIR_MARK,
    ),
    "v6.18.44": (
        Patch.SEND_INLINE_NOT_HOLE,
        Patch.LOG_MOVED_CONFLICTS,
        Patch.LOG_NEW_NAME_DENTRIES,
        Patch.LOG_OLD_CONFLICTS,
        Patch.LOG_CONFLICT_DENTRIES,
        Patch.LOG_EXISTS_SIZE,
        Patch.LOG_RMDIR_MARK,
    ),
}

_RELEASES: Final = (
    *(f"v4.{minor}" for minor in range(16, 21)),
    *(f"v5.{minor}" for minor in range(20)),
    *(f"v6.{minor}" for minor in range(19)),
)

PRESETS: Final[tuple[str, ...]] = tuple(
    sorted((*_RELEASES, *_BACKPORTS), key=lambda name: [int(n) for n in name[1:].split(".")])
)
"""Kernels by name: every release, and the stable ones of which records exist."""


def _version(name: str) -> tuple[int, int]:
    major, minor = name.removeprefix("v").split(".")[:2]
    return int(major), int(minor)


@cache
def _preset(name: str) -> frozenset[Patch]:
    released = {
        patch for patch in Patch if patch.release and _version(patch.release) <= _version(name)
    }
    return frozenset(released | set(_BACKPORTS.get(name, ())))


def _bit(patch: Patch) -> int:
    """Return the bit of a toggle for the C kernels; 0 when they do not ask for it."""
    name = f"BM_TOGGLE_{patch.name}"
    return 1 << getattr(lib, name) if hasattr(lib, name) else 0


def is_implemented(patch: Patch) -> bool:
    """Whether the model has both sides of a toggle yet."""
    return bool(_bit(patch)) or patch in IN_PYTHON_ALONE


class Behaviour:
    """What a kernel does: a set of toggles.

    Parameters
    ----------
    patches : frozenset of Patch
        The toggles that are on.
    text : str
        How it was asked for; shown in reports.
    """

    def __init__(self, patches: frozenset[Patch], text: str) -> None:
        self.patches = patches
        self.text = text

    @classmethod
    def parse(cls, text: str | Behaviour) -> Behaviour:
        """Read ``PRESET [+ TOGGLE | - TOGGLE]...``, e.g. ``v6.12 - send-utimes-cache``.

        Raises
        ------
        UnknownBehaviourError
            For a preset or toggle that is not in the table.
        BtrfsModelError
            For a toggle that the model knows of but does not have yet.

        Warns
        -----
        BehaviourWarning
            For a toggle that is added and was there already, or taken away and was not there.
        """
        if isinstance(text, Behaviour):
            return text
        # a slug has dashes in it, so an operator is a sign with white space around it
        name, *rest = re.split(r"\s+([+-])\s*", text.strip())
        if name not in PRESETS:
            raise UnknownBehaviourError(
                f"unknown kernel '{name}' in behaviour '{text}': one of {', '.join(PRESETS)}"
                f"{did_you_mean(name, PRESETS)}"
            )
        patches = set(_preset(name))
        for sign, slug in zip(rest[::2], rest[1::2], strict=True):
            patch = _BY_SLUG.get(slug)
            if patch is None:
                raise UnknownBehaviourError(
                    f"unknown toggle '{slug}' in behaviour '{text}'{did_you_mean(slug, Patch)}"
                )
            if not is_implemented(patch):
                raise BtrfsModelError(
                    f"toggle '{slug}' of behaviour '{text}' is not in the model yet"
                )
            if (patch in patches) == (sign == "+"):
                there = "already has" if sign == "+" else "does not have"
                warnings.warn(
                    f"behaviour '{text}': {name} {there} toggle '{slug}', '{sign} {slug}' changes "
                    "nothing",
                    BehaviourWarning,
                    stacklevel=2,
                )
            (patches.add if sign == "+" else patches.discard)(patch)
        return cls(frozenset(patches), text.strip())

    def __contains__(self, patch: str) -> bool:
        if patch not in _BY_SLUG:
            raise UnknownNameError("toggle", patch, Patch)
        return patch in self.patches

    def __iter__(self) -> Iterator[Patch]:
        return (patch for patch in Patch if patch in self.patches)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Behaviour) and self.patches == other.patches

    def __hash__(self) -> int:
        return hash(self.patches)

    def __repr__(self) -> str:
        return f"Behaviour({self.text!r})"

    def _repr_html_(self) -> str:
        title = f"{self.text}: {len(self.patches)} of {len(Patch)} toggles"
        name, *_ = self.text.split(maxsplit=1) or [""]
        changed = self.patches ^ (_preset(name) if name in PRESETS else frozenset())
        rows = [("+" if one in self.patches else "-", one, one.release, one.what)
                for one in Patch if one in changed]  # fmt: skip
        return html_table(title, ["", "toggle", "release", "what"], rows, len(rows))

    def __str__(self) -> str:
        return self.text

    @property
    def bits(self) -> int:
        """The toggles as bits for the C kernels: ``1 << enum bm_toggle``."""
        return sum(map(_bit, self.patches))


def table() -> pd.DataFrame:
    """Return the table of toggles.

    Returns
    -------
    pandas.DataFrame
        A row for each toggle: slug, release, commit, title, what, implemented.
    """
    import pandas as pd

    columns = ["slug", "release", "commit", "title", "what", "implemented"]
    rows = [
        (str(one), one.release, one.commit, one.subject, one.what, is_implemented(one))
        for one in Patch
    ]
    return pd.DataFrame(rows, columns=columns)
