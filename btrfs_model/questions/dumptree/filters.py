# SPDX-License-Identifier: GPL-2.0-only
"""Which items a dump shows."""

from __future__ import annotations

from typing import NamedTuple

from btrfs_model.ondisk.keys import MAX_KEY, MIN_KEY, Key


class KeyRange(NamedTuple):
    """All keys from `min` to `max`, both included."""

    min: Key
    max: Key

    @property
    def is_all(self) -> bool:
        """Whether every key is in it."""
        return self.min == MIN_KEY and self.max == MAX_KEY


def key_range(
    min_key: Key | None = None, max_key: Key | None = None, objectid: int | None = None
) -> KeyRange:
    """Return the keys that pass all the filters that are given.

    `min_key`, `max_key`: first and last key.
    `objectid`: the only objectid.
    """
    low, high = min_key or MIN_KEY, max_key or MAX_KEY
    if objectid is not None:
        low = max(low, Key(objectid, MIN_KEY.type, MIN_KEY.offset))
        high = min(high, Key(objectid, MAX_KEY.type, MAX_KEY.offset))
    return KeyRange(Key(*low), Key(*high))
