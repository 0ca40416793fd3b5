# SPDX-License-Identifier: GPL-2.0-only
"""Calibration of a machine: what one of each kind of work takes on a kernel at hand.

Microbenchmarks, small filesystems made for one kind of work each, are counted by the model and
timed on the kernel (:mod:`~btrfs_model.experiments.calibration.micro`). None of them is a workload.
:mod:`~btrfs_model.experiments.calibration.fit` finds the unit costs that explain the times, and
:mod:`~btrfs_model.experiments.calibration.machine_file` writes them.
"""
