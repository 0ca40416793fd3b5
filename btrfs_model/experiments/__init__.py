# SPDX-License-Identifier: GPL-2.0-only
"""The experiments of commit messages, done again before and after the commit.

:mod:`~btrfs_model.experiments.replay` runs them, :mod:`~btrfs_model.experiments.results` has the
table of figures, :mod:`~btrfs_model.experiments.report` writes the files. Each workload is a module
of :mod:`~btrfs_model.experiments.workloads`.
"""
