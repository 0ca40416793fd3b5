# SPDX-License-Identifier: GPL-2.0-only
"""The command ``btrfs`` of btrfs-progs 6.2."""
