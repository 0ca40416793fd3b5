# SPDX-License-Identifier: GPL-2.0-only
"""What work costs outside the filesystem: waiting for devices, system calls of the receiver."""
