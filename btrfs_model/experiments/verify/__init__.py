# SPDX-License-Identifier: GPL-2.0-only
"""The model beside live kernels: the same done in both, and what came of it compared.

:mod:`~btrfs_model.experiments.verify.kinds` has what is compared, ``random`` draws what it is
compared on, :mod:`~btrfs_model.experiments.verify.run` goes through seeds and kernels,
:mod:`~btrfs_model.experiments.verify.shrink` makes a scenario with a difference short.
"""
