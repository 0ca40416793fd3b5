# SPDX-License-Identifier: GPL-2.0-only
"""The version of the package, as it was installed."""

from __future__ import annotations

from importlib.metadata import version
from typing import Final

__version__: Final = version("btrfs-model")
