# SPDX-License-Identifier: GPL-2.0-only
"""Which toggles of logs make sense together.

Commits that build on another one have no meaning without it. A behaviour that takes the ground away
from under one is refused by the first fsync, before anything is logged; a replay, which looks at
fewer of them, takes any.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from btrfs_model.base.errors import BtrfsModelError

if TYPE_CHECKING:
    from btrfs_model.patches import Behaviour

__all__ = ["NEEDS", "check_behaviour"]

NEEDS: Final = {
    # hashes of names have gaps that say nothing, so what is between two keys means something of
    # indexes alone
    "log-no-boundary-keys": "log-dir-index-only",
    "log-skip-old-dir-items": "log-no-boundary-keys",
    # that is what waits: indexes of this transaction, which are logged outside of the lock
    "log-delayed-items": "log-skip-old-dir-items",
    "log-conflict-list": "log-symlinks-full",
    "log-first-index": "log-delayed-items",
    "log-new-dentries": "log-first-index",
    "log-no-links": "log-conflict-list",
    "log-new-name-refs": "log-conflict-list",
    "log-old-conflicts": "log-conflict-list",
    "log-moved-conflicts": "log-conflict-list",
    "log-new-name-dentries": "log-conflict-list",
    "log-conflict-dentries": "log-conflict-list",
    "log-exists-size": "log-conflict-list",
}
"""What a toggle builds on; ``log-delayed-items`` on ``log-conflict-list`` as well."""


@cache
def check_behaviour(behaviour: Behaviour) -> None:
    """Refuse a behaviour whose logs no kernel could write.

    Raises
    ------
    BtrfsModelError
        When a toggle is without what it builds on.
    """
    needs = [*NEEDS.items(), ("log-delayed-items", "log-conflict-list")]
    for slug, other in needs:
        if slug in behaviour and other not in behaviour:
            raise BtrfsModelError(
                f"no logs are written with the behaviour '{behaviour}': '{slug}' needs '{other}'"
            )
