# SPDX-License-Identifier: GPL-2.0-only
"""Differences by cause: those that one toggle takes away, else those that look the same."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from btrfs_model.behaviour import JUDGED, Behaviour, version
from btrfs_model.experiments.radar.titles import Title, ranked
from btrfs_model.experiments.verify.run import Outcome
from btrfs_model.patches import Patch

_AREAS: Final = {
    # kinds of comparison
    "send": "send", "log": "log fsync", "replay": "log replay", "fiemap": "fiemap backref share",
    "data": "compress inline delalloc", "quotas": "qgroup squota quota", "reads": "readahead",
    "full": "space reserve enospc overcommit",
    # what is compared
    "streams": "send", "fsyncs": "fsync log commit", "log items": "log logging",
    "ranges": "dir index log", "mount options": "mount option", "refused mounts": "replay mount",
    "rotted files": "csum checksum", "sums": "csum checksum", "csums": "csum checksum",
    "groups shown": "qgroup", "states shown": "qgroup", "quota items": "qgroup",
    "maps": "fiemap extent", "addresses": "backref", "inodes": "inode",
    # items
    "INODE_ITEM": "inode", "INODE_REF": "ref name", "INODE_EXTREF": "extref ref",
    "EXTENT_DATA": "extent hole", "DIR_INDEX": "dir index dentr", "DIR_ITEM": "dir item",
    "DIR_LOG_INDEX": "dir index", "XATTR_ITEM": "xattr", "ORPHAN_ITEM": "orphan",
    "QGROUP_INFO": "qgroup", "QGROUP_LIMIT": "qgroup limit", "QGROUP_RELATION": "qgroup relation",
    # fields
    "nbytes": "inline", "type": "inline prealloc", "packed": "compress",
    "compression": "compress", "ram_bytes": "inline compress", "flags": "flag", "nlink": "link",
    "generation": "generation transid", "otime": "otime", "disk_num_bytes": "compress",
    # operations of the example
    "rename": "rename name", "exchange": "rename name", "link": "link name", "unlink": "unlink",
    "rmdir": "rmdir director", "truncate": "truncate", "fallocate": "prealloc fallocate",
    "punch": "hole", "clone": "reflink clone", "setxattr": "xattr", "chattr": "flag nodata",
    "snapshot": "snapshot", "qgroup_limit": "qgroup limit", "quota_rescan": "rescan",
}  # fmt: skip
"""Words that titles have for what differs. The kernel's functions have them in their names."""
_WEIGHTS: Final = {"kind": 1.0, "shape": 2.0, "example": 0.5}


@dataclass
class Group:
    """Differences of one cause.

    Attributes
    ----------
    change : str
        Of the toggle that takes them away (``+ inline-first``); empty where none does.
    shape : list of str
        How they look; of those that a toggle takes away that of the smallest example.
    example : Outcome
        The smallest.
    counted : Counter
        Differences by release of the kernel and kind.
    others : list of str
        Other changes that take the example away, too.
    asked : dict
        Whether the example differs on other kernels, each with its own preset.
    titles : list of tuple
        Commits that may be behind it, each with the words for which it is here.
    """

    change: str
    shape: list[str]
    example: Outcome
    counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)
    asked: dict[str, bool] = field(default_factory=dict)
    titles: list[tuple[Title, list[str]]] = field(default_factory=list)

    @property
    def patch(self) -> Patch | None:
        """The toggle that takes them away."""
        return next((one for one in Patch if self.change[2:] == one), None)

    @property
    def name(self) -> str:
        """What a reader calls it: the toggle, or what differs."""
        return self.change or f"{self.example.kind}: {'; '.join(self.shape)}"

    @property
    def since(self) -> str:
        """Between which kernels it came, as far as that is known."""
        return since(self.patch, self.example.release, self.asked)


def changes_of(one: Outcome) -> list[str]:
    """Return the single changes that are told of a difference.

    >>> changes_of(Outcome("k", "7.2.7", "log", "1", toggles=["+ a + b"]))
    ['+ a', '+ b']
    """
    return [f"{sign} {slug}" for text in one.toggles
            for sign, slug in re.findall(r"([+-]) ([\w-]+)", text)]  # fmt: skip


def grouped(outcomes: Iterable[Outcome]) -> list[Group]:
    """Group differences, the most frequent cause first.

    Of several toggles that take one away, it is that which takes most away. A difference for which
    several are needed counts for each of them.
    """
    found = [one for one in outcomes if one.difference]
    often = Counter(change for one in found for change in changes_of(one))
    parts: dict[tuple[str, ...], list[Outcome]] = defaultdict(list)
    for one in found:
        for change in _chosen(one, often) or [""]:
            key = (change,) if change else ("", one.kind, *one.shape)
            parts[key].append(one)
    groups = [_group(key[0], members) for key, members in parts.items()]
    return sorted(groups, key=lambda one: -one.counted.total())


def _chosen(one: Outcome, often: Mapping[str, int]) -> list[str]:
    if len(one.toggles) == 1:
        return changes_of(one)
    return [max(changes_of(one), key=lambda change: often[change])] if one.toggles else []


def _group(change: str, members: Sequence[Outcome]) -> Group:
    example = min(members, key=lambda one: (not one.scenario, len(one.scenario)))
    others = [one for one in example.toggles if change and one != change]
    counted = Counter((one.release, one.kind) for one in members)
    return Group(change, example.shape, example, counted, others)


# ------------------------------------------------------------------------------------- commits --


def words_for(kind: str, shape: Sequence[str], scenario: Sequence[Any]) -> dict[str, float]:
    """Return the words that a title of the commit behind a difference may have, with weights."""
    found: dict[str, float] = {}
    parts = {
        "kind": [kind],
        "shape": [name if name in _AREAS else name.partition(" ")[0] for name in shape],
        "example": [str(line[0]) for line in scenario[2:]],
    }
    for part, names in parts.items():
        for word in " ".join(_AREAS.get(name, "") for name in names).split():
            found[word] = max(found.get(word, 0), _WEIGHTS[part])
    return found


def set_beside(group: Group, commits: Sequence[Title]) -> None:
    """Look for commits that may be behind a group; that of its toggle stands first."""
    patch, example = group.patch, group.example
    group.titles = ranked(words_for(example.kind, group.shape, example.scenario), commits)
    if patch is not None:
        own = Title(patch.release, patch.commit, patch.subject)
        rest = [pair for pair in group.titles if pair[0].title != own.title]
        group.titles = [(own, []), *rest][: len(group.titles) or 1]


def since(patch: Patch | None, release: str, asked: Mapping[str, bool]) -> str:
    """Say between which kernels a difference came.

    `asked`: whether it shows on other kernels, by release. What a toggle is behind came with its
    commit, of the others it is known from the kernels that were asked.

    >>> since(None, "7.2.7", {"6.12.113": False, "6.18.44": False})
    'after 6.18.44, up to 7.2.7'
    >>> since(Patch("inline-first"), "7.2.7", {})
    '7.1; judged: v6.18.44 without it, v7.2.7 with it'
    """
    if patch is not None:
        return _since_toggle(patch)
    older = [one for one, differs in asked.items() if version(one) < version(release)]
    without = max((one for one in older if not asked[one]), key=version, default="")
    shown = [one for one in older if asked[one] and version(one) > version(without or "0")]
    first = min([*shown, release], key=version)
    return f"after {without}, up to {first}" if without else f"in {first} or before"


def _since_toggle(patch: Patch) -> str:
    having = {name: patch in Behaviour.parse(name) for name in JUDGED}
    first = next((name for name in JUDGED if having[name]), "")
    before = [name for name in JUDGED if not having[name]
              and (not first or version(name) < version(first))]  # fmt: skip
    judged = [f"{before[-1]} without it"] if before else []
    judged += [f"{first} with it"] if first else []
    stable = f", stable {', '.join(patch.backports)}" if patch.backports else ""
    return f"{patch.release or 'no release'}{stable}; judged: {', '.join(judged) or 'neither'}"
