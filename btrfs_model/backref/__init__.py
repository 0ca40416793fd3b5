# SPDX-License-Identifier: GPL-2.0-only
"""Who refers to an extent: backref walking, and the LOGICAL_INO ioctl on top of it.

:mod:`~btrfs_model.reference.backref` is the algorithm in Python, to be read;
:mod:`~btrfs_model.reference.backref_prelim` the containers whose order it reports in;
:mod:`~btrfs_model.volume.forest` the trees that it walks through. The functions here run the same
in C unless ``BTRFS_MODEL_KERNELS=python`` says otherwise.
"""
