# SPDX-License-Identifier: GPL-2.0-only
"""The atlas: what each of many commits buys, by its message and by the model.

:mod:`~btrfs_model.experiments.atlas.rows` has the commits, as ``data/atlas`` lists them,
:mod:`~btrfs_model.experiments.atlas.runs` what their scripts come to on both sides,
:mod:`~btrfs_model.experiments.atlas.predictions` what was predicted before a figure was entered,
:mod:`~btrfs_model.experiments.atlas.scores` how often the model was right.
"""
