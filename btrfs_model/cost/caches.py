# SPDX-License-Identifier: GPL-2.0-only
"""Leaves of a log that the last cache of a processor has forgotten: the more, the smaller it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

UNCACHED: Final = "log_leaves_uncached"
"""Quantity that costs are paid for: leaves come to that the cache at hand has not."""
DEFAULT_MIB: Final = 32
"""Size of a cache that nothing is said of: that of the machines that come with the package."""
_BY_SIZE: Final = {8: f"{UNCACHED}_8m", 16: f"{UNCACHED}_16m", DEFAULT_MIB: UNCACHED}
"""Counters by the MiB of a cache."""


def with_cache(work: Mapping[str, float], mib: float) -> Mapping[str, float]:
    """Return work as it is with a last cache of about so many MiB.

    The nearest size that is counted is taken; who asks once more gets the same.
    """
    nearest = min(_BY_SIZE, key=lambda size: abs(math.log(size / mib)))
    forgotten = work.get(_BY_SIZE[nearest])
    if forgotten is None:
        return work
    others = _BY_SIZE.values()
    kept = {name: count for name, count in work.items() if name not in others}
    return {**kept, UNCACHED: forgotten}
