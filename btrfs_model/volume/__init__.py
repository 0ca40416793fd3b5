# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems: trees, subvolumes, directories, files and their data."""
