# SPDX-License-Identifier: GPL-2.0-only
"""Every state that a crash may leave: what a mount makes of it, beside what was promised.

::

    seen        what can be seen of a filesystem: the states that are compared
    promises    the rules, each with its source, and which of them a state breaks
    record      a scenario or a script that runs, and the writes to its device
    states      what a crash between two writes leaves, each state that differs once
    api         all of it for one workload: ``bm.crashes()``
    enumerate   the same for all small sequences of operations
"""
