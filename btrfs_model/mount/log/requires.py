# SPDX-License-Identifier: GPL-2.0-only
"""Which toggles of logs make sense together.

Commits that build on another one have no meaning without it. A behaviour that takes the ground away
from under one is refused by the first fsync, before anything is logged; a replay, which looks at
fewer of them, takes any.
"""

from __future__ import annotations

from functools import cache

from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.behaviour import Behaviour


@cache
def check_behaviour(behaviour: Behaviour) -> None:
    """Refuse a behaviour whose logs no kernel could write.

    Raises BtrfsModelError: when a toggle is without what it builds on.
    """
    for patch in behaviour:
        for other in patch.needs:
            if other not in behaviour:
                later = [str(one) for one in other.needed_by if one in behaviour]
                raise BtrfsModelError(
                    f"no logs are written with the behaviour '{behaviour}': '{patch}' needs "
                    f"'{other}'; without all that need it: '{' - '.join([str(behaviour), *later])}'"
                )
