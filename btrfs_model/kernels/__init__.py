# SPDX-License-Identifier: GPL-2.0-only
"""Real kernels as ordinary processes: started, asked, timed and cleaned up.

::

    from btrfs_model.kernels import timings
    from btrfs_model.kernels.choice import start

    with start("uml") as kernel:
        timing = timings.send(kernel, "disk.img", "snap2", parent="snap1", runs=7)

:mod:`~btrfs_model.kernels.choice` finds a kernel by name, :mod:`~btrfs_model.kernels.session` talks
to its process, and the modules of :mod:`~btrfs_model.kernels.inside` run in it.
"""
