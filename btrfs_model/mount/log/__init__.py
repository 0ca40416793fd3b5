# SPDX-License-Identifier: GPL-2.0-only
"""Log trees: what fsync writes instead of a commit (``tree-log.c``).

The modules here follow Linux 6.1 to 6.18; :mod:`~btrfs_model.mount.log.v5_10` follows 5.10. The
replay of a log is a question: :mod:`btrfs_model.mount.log.replay`.
"""
