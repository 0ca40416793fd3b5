# SPDX-License-Identifier: GPL-2.0-only
"""Public names of the package, for the few methods that ask a question of a storey above."""

from __future__ import annotations

import sys
from typing import Any


def public(name: str) -> Any:
    """Return a public name: the table in ``btrfs_model/__init__.py`` says where it is."""
    return getattr(sys.modules[__name__.partition(".")[0]], name)
