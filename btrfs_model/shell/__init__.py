# SPDX-License-Identifier: GPL-2.0-only
"""Bash, run in Python: a script becomes closures, what they change is a world that is handed in.

shfmt parses (:mod:`~btrfs_model.shell.parse`). :mod:`~btrfs_model.shell.compile` and
:mod:`~btrfs_model.shell.compound` make closures of statements,
:mod:`~btrfs_model.shell.expansion` of words and expressions. :func:`~btrfs_model.shell.bash.bash`
puts them together. Nothing here touches the files or the processes of this machine.
"""
