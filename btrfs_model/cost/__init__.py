# SPDX-License-Identifier: GPL-2.0-only
"""What work costs outside the filesystem: waiting for devices, system calls of the receiver.

Disks and flash follow published models, the elevator ``block/mq-deadline.c``; they are in
``native/device``. The receiver is that of btrfs-progs (``cmds/receive.c``).
"""
