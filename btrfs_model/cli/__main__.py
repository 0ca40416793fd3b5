# SPDX-License-Identifier: GPL-2.0-only
"""``python -m btrfs_model.cli``."""

from btrfs_model.cli import main

main()
