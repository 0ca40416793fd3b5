# SPDX-License-Identifier: GPL-2.0-only
"""A script on the model: a computer with devices, mounts and programs, on which bash runs.

:mod:`~btrfs_model.shell` runs the script; what it acts on is a
:class:`~btrfs_model.scripts.computer.Computer`. Files outside of mounts are in memory, programs are
Python; filters of this computer see bytes on pipes alone (:mod:`~btrfs_model.scripts.host`).
"""
