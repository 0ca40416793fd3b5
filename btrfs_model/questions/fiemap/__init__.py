# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP: where the extents of a file lie, and whether they are shared.

The ioctl FS_IOC_FIEMAP as btrfs answers it on a filesystem at rest, in the behaviour of each kernel
since 5.10. :mod:`~btrfs_model.reference.fiemap.items` walks file extent items, as kernels do since
6.1; :mod:`~btrfs_model.reference.fiemap.maps` walks extent maps, as they did before;
:mod:`btrfs_model.reference.share` tells whether an extent is shared. The functions here run the
same in C unless ``BTRFS_MODEL_KERNELS=python`` says otherwise.
"""
