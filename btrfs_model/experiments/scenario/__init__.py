# SPDX-License-Identifier: GPL-2.0-only
"""Scenarios: filesystems as lists of operations.

A scenario is data: a JSON object with ``ops``, or a file of JSON lines with an operation each, such
as a log of the system calls of a run on a real kernel.
:mod:`~btrfs_model.experiments.scenario.operations` says which operations there are,
:mod:`~btrfs_model.experiments.scenario.load` reads and validates a file,
:mod:`~btrfs_model.experiments.scenario.run` carries one out.
"""
