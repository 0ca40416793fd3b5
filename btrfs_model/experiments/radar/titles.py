# SPDX-License-Identifier: GPL-2.0-only
"""Titles of commits of ``fs/btrfs`` by release, and which of them may be behind a difference.

``data/titles.tsv.gz`` has what pull requests of btrfs listed, from 6.1 on, and of 7.1 to 7.3 what
came with the merge window; with the id where it is known. The commits of the table of toggles are
among them.
"""

from __future__ import annotations

import gzip
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from btrfs_model.base.samples import data_folder
from btrfs_model.behaviour import version
from btrfs_model.patches import Patch

_FILE: Final = "titles.tsv.gz"
_MOST: Final = 5
_WEAK: Final = 0.5
"""A title of less than this share of the best one's score is left out."""


class Title(NamedTuple):
    """A commit.

    Attributes
    ----------
    release : str
        Of the main line that it entered.
    commit : str
        First twelve digits of its id; empty where it is not known.
    title : str
        First line of its message.
    """

    release: str
    commit: str
    title: str


@cache
def titles() -> tuple[Title, ...]:
    """Return all commits that are known, in the order of releases."""
    text = gzip.decompress((data_folder() / _FILE).read_bytes()).decode()
    found = [Title(*line.split("\t")) for line in text.splitlines()]
    known, first = {one.commit for one in found}, version(found[0].release)
    found += [Title(one.release, one.commit, one.subject) for one in Patch
              if one.release and version(one.release) >= first
              and one.commit not in known]  # fmt: skip
    return tuple(sorted(found, key=lambda one: version(one.release)))


def between(first: str, last: str) -> list[Title]:
    """Return the commits that a kernel may have and an older one may not have.

    Those of the releases after the first. A stable kernel has commits of releases after its own.

    >>> {one.release for one in between("v6.18.44", "v7.0")} == {"6.19", "7.0"}
    True
    """
    low, high = version(first)[:2], version(last)
    stable = len(high) > len(low) and high[2] > 0
    return [one for one in titles()
            if version(one.release) > low
            and (stable or version(one.release) <= high[:2])]  # fmt: skip


def words_of(text: str) -> set[str]:
    """Return the words of a title; names of functions are several.

    >>> sorted(words_of("btrfs: fix the check in inode_need_compress()"))
    ['btrfs', 'check', 'compress', 'fix', 'in', 'inode', 'need', 'the']
    """
    return set(re.findall(r"[a-z0-9]+", text.lower().replace("_", " ")))


def ranked(
    wanted: Mapping[str, float], commits: Sequence[Title], most: int = _MOST
) -> list[tuple[Title, list[str]]]:
    """Return the titles that have most of some words, the best first, each with those it has.

    A word counts for what it weighs, and the more the fewer titles have it. A title has a word also
    where it goes on: ``inline`` is in ``inlined``.
    """
    having = [_has(one, wanted) for one in commits]
    often = Counter(word for words in having for word in words)
    scores = [sum(wanted[word] * math.log(1 + len(commits) / often[word]) for word in words)
              for words in having]  # fmt: skip
    best = sorted(range(len(commits)), key=lambda at: -scores[at])[:most]
    return [(commits[at], having[at]) for at in best
            if scores[at] > 0 and scores[at] >= _WEAK * scores[best[0]]]  # fmt: skip


def _has(one: Title, wanted: Iterable[str]) -> list[str]:
    there = words_of(one.title)
    return [word for word in wanted if any(other.startswith(word) for other in there)]
