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
from btrfs_model.patches import Patch

if TYPE_CHECKING:
    from btrfs_model.behaviour import Behaviour

__all__ = ["NEEDS", "check_behaviour"]

NEEDS: Final = {
    # hashes of names have gaps that say nothing, so what is between two keys means something of
    # indexes alone
    Patch.LOG_NO_BOUNDARY_KEYS: Patch.LOG_DIR_INDEX_ONLY,
    Patch.LOG_SKIP_OLD_DIR_ITEMS: Patch.LOG_NO_BOUNDARY_KEYS,
    # that is what waits: indexes of this transaction, which are logged outside of the lock
    Patch.LOG_DELAYED_ITEMS: Patch.LOG_SKIP_OLD_DIR_ITEMS,
    Patch.LOG_CONFLICT_LIST: Patch.LOG_SYMLINKS_FULL,
    Patch.LOG_FIRST_INDEX: Patch.LOG_DELAYED_ITEMS,
    Patch.LOG_NEW_DENTRIES: Patch.LOG_FIRST_INDEX,
    Patch.LOG_NO_LINKS: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_NEW_NAME_REFS: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_OLD_CONFLICTS: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_MOVED_CONFLICTS: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_NEW_NAME_DENTRIES: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_CONFLICT_DENTRIES: Patch.LOG_CONFLICT_LIST,
    Patch.LOG_EXISTS_SIZE: Patch.LOG_CONFLICT_LIST,
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
    needs = [*NEEDS.items(), (Patch.LOG_DELAYED_ITEMS, Patch.LOG_CONFLICT_LIST)]
    for slug, other in needs:
        if slug in behaviour and other not in behaviour:
            raise BtrfsModelError(
                f"no logs are written with the behaviour '{behaviour}': '{slug}' needs '{other}'"
            )
