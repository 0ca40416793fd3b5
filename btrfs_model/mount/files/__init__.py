# SPDX-License-Identifier: GPL-2.0-only
"""File data: pages, extents, writeback."""
