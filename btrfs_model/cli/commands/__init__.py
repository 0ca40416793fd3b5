# SPDX-License-Identifier: GPL-2.0-only
"""The commands, a module for those of a kind; ``btrfs_model.cli`` lists them."""
