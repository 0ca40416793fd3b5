# SPDX-License-Identifier: GPL-2.0-only
"""Replay of logs: what a mount does after a crash.

Follows the replaying half of ``tree-log.c``, from ``btrfs_recover_log_trees()`` on. The half that
writes logs is :mod:`btrfs_model.mount.log`.
"""
