# SPDX-License-Identifier: GPL-2.0-only
"""What work costs outside the filesystem: waiting for devices, system calls of the receiver.

Disks and flash follow published models; the elevator follows ``block/mq-deadline.c``. The twins in
C are in ``native/device``. The receiver is that of btrfs-progs (``cmds/receive.c``).
"""
