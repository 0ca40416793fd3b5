# SPDX-License-Identifier: GPL-2.0-only
"""Names, inodes, attributes and subvolumes."""
