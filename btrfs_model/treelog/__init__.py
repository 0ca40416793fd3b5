# SPDX-License-Identifier: GPL-2.0-only
"""Log trees: what an fsync leaves on disk between two commits, and how a mount replays it."""
