# SPDX-License-Identifier: GPL-2.0-only
"""What a kernel does that the model does not: found, grouped by cause, set beside commits.

:mod:`~btrfs_model.experiments.radar.look` goes through scenarios and kernels,
:mod:`~btrfs_model.experiments.radar.groups` has the causes,
:mod:`~btrfs_model.experiments.radar.titles` the commits between two releases.
"""
