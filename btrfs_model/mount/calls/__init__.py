# SPDX-License-Identifier: GPL-2.0-only
"""The calls of a filesystem in memory, by what they are about: names, files, subvolumes.

A call checks what the VFS checks, then does what btrfs does (the rooms beside). Errors are OSError
with the kernel's errno.
"""
