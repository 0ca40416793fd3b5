# SPDX-License-Identifier: GPL-2.0-only
"""Sweeps: the same question in very many cells, remembered, on one machine or on a cluster.

A :mod:`~btrfs_model.experiments.sweep.plan` has the cells, a
:mod:`~btrfs_model.experiments.sweep.target` measures one,
:mod:`~btrfs_model.experiments.sweep.store` remembers them,
:mod:`~btrfs_model.experiments.sweep.engine` has the processes,
:mod:`~btrfs_model.experiments.sweep.driver` hands batches to them, and
:mod:`~btrfs_model.experiments.sweep.api` is the way in.
:mod:`~btrfs_model.experiments.sweep.sensitivity` says which knob decides.
"""
