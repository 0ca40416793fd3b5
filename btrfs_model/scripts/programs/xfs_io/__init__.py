# SPDX-License-Identifier: GPL-2.0-only
"""xfs_io, with a module for each kind of its commands, and filefrag."""
