# SPDX-License-Identifier: GPL-2.0-only
"""The smallest set of subvolumes whose deletion frees so many bytes.

Bytes belong to those who keep them: `weights` has for each set of subvolumes the bytes that just
these keep. To delete a set frees what its subsets weigh. There are three ways:

- Up to 22 subvolumes all sets are weighed (the sums over subsets take 22 passes over four million
  numbers).
- Snapshots of one subvolume that are made one after the other keep what lived from one to another
  of them: each part is kept by a run of neighbours. Then the best set is made of runs, and found
  from left to right for each number of members.
- Else there is a search that goes on with what frees most for each subvolume that has to go with
  it, and a bound: the bytes of a set of k, shared out equally among these, are at most what its
  members get, so no k subvolumes free more than the k largest shares of bytes that at most k keep.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

EXACT: Final = 22
"""Up to so many subvolumes each set is weighed."""

_CLOSURES: Final = 400

Members = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.int64]


class Smallest(NamedTuple):
    """A set of subvolumes.

    `chosen` (list of int): their numbers, ascending.
    `fewest`: no set of fewer frees so much; where that is how many there are, none is smaller.
    """

    chosen: list[int]
    fewest: int


def smallest_set(
    members: Members, weights: Bytes, wanted: int, lines: npt.NDArray[np.intp]
) -> Smallest | None:
    """Find a set that frees at least `wanted` bytes.

    `members`: shape (sets, subvolumes): who keeps each part; `weights`: bytes of each part.
    `lines`: of each subvolume a number: alike for snapshots of the same one.
    Returns None when all together do not free so much. Of up to :data:`EXACT` subvolumes it is the
    smallest set, and of these the one whose youngest member is oldest, then the next one.
    """
    count = members.shape[1]
    if int(weights.sum()) < wanted:
        return None
    if wanted <= 0:
        return Smallest([], 0)
    if count <= EXACT:
        chosen = _exactly(members, weights, wanted)
        return Smallest(chosen, len(chosen))
    order = np.argsort(lines, kind="stable")
    runs = _by_runs(members[:, order], weights, wanted)
    if runs is not None:
        return Smallest(sorted(order[runs].tolist()), len(runs))
    chosen = _without_needless(members, weights, wanted, _greedily(members, weights, wanted))
    return Smallest(chosen, _fewest(members, weights, wanted))


def freed_by(members: Members, weights: Bytes, sets: Members) -> Bytes:
    """Return the bytes that the deletion of each set frees; `sets`: shape (n, subvolumes)."""
    # how many of the keepers of a part are not in a set; counts are far below 2^24
    left = members.astype(np.float32) @ (~sets).T.astype(np.float32)
    freed: Bytes = np.where(left == 0, weights[:, None], 0).sum(axis=0)
    return freed


def _exactly(members: Members, weights: Bytes, wanted: int) -> list[int]:
    count = members.shape[1]
    total = np.zeros(1 << count, np.int64)
    np.add.at(total, members @ (1 << np.arange(count)), weights)
    size = np.zeros(1, np.int8)
    for bit in range(count):
        pairs = total.reshape(-1, 2, 1 << bit)
        pairs[:, 1] += pairs[:, 0]
        size = np.concatenate([size, size + np.int8(1)])
    enough = np.flatnonzero(total >= wanted)
    best = int(enough[np.argmin(size[enough])])
    return [bit for bit in range(count) if best >> bit & 1]


def _by_runs(members: Members, weights: Bytes, wanted: int) -> list[int] | None:
    """Find the smallest set where each part is kept by neighbours alone; None where one is not."""
    count = members.shape[1]
    first = members.argmax(axis=1)
    last = count - 1 - members[:, ::-1].argmax(axis=1)
    if (members.sum(axis=1) != last - first + 1).any():
        return None
    inside = np.zeros((count, count), np.int64)
    np.add.at(inside, (first, last), weights)
    # of each run what begins and ends in it
    inside = np.cumsum(np.cumsum(inside[::-1], axis=0)[::-1], axis=1)
    # the most that k of the first n free, and where the run begins that ends there
    most = np.zeros((count + 1, count + 1), np.int64)
    begins = np.full((count + 1, count + 1), -1)
    for end in range(1, count + 1):
        most[end] = most[end - 1]
        for start in range(end):
            length = end - start
            freed = most[start, : count + 1 - length] + inside[start, end - 1]
            better = freed > most[end, length:]
            most[end, length:][better] = freed[better]
            begins[end, length:][better] = start
    size, end = int(np.argmax(most[count] >= wanted)), count
    chosen: list[int] = []
    while end:
        start = int(begins[end, size])
        if start >= 0:
            chosen += range(start, end)
            size -= end - start
        end = start if start >= 0 else end - 1
    return sorted(chosen)


def _greedily(members: Members, weights: Bytes, wanted: int) -> Members:
    """Return a set; each step takes the keepers of a part that free most for each of them."""
    heavy = np.argsort(-weights, kind="stable")[:_CLOSURES]
    singles = np.eye(members.shape[1], dtype=np.bool_)
    steps = np.unique(np.concatenate([members[heavy], singles]), axis=0)
    chosen = np.zeros(members.shape[1], np.bool_)
    have = 0
    while have < wanted:
        grown = steps | chosen
        added = grown.sum(axis=1) - chosen.sum()
        gain = np.minimum(freed_by(members, weights, grown), wanted) - have
        rate = np.where(added > 0, gain / np.maximum(added, 1), -1.0)
        chosen = grown[int(np.argmax(rate))]
        have = int(freed_by(members, weights, chosen[None])[0])
    return chosen


def _without_needless(members: Members, weights: Bytes, wanted: int, chosen: Members) -> list[int]:
    """Leave out who is not needed, the youngest first."""
    for number in np.flatnonzero(chosen)[::-1].tolist():
        less = chosen.copy()
        less[number] = False
        if int(freed_by(members, weights, less[None])[0]) >= wanted:
            chosen = less
    return [int(number) for number in np.flatnonzero(chosen)]


def _fewest(members: Members, weights: Bytes, wanted: int) -> int:
    """Return the least number of subvolumes that might free so much."""
    size = members.sum(axis=1)
    for count in range(1, members.shape[1]):
        part = size <= count
        # a share is rounded up: the bound stays one
        shares = -(-weights[part] // size[part])
        each = np.where(members[part], shares[:, None], 0).sum(axis=0)
        if int(np.sort(each)[::-1][:count].sum()) >= wanted:
            return count
    return int(members.shape[1])
