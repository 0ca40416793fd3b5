# SPDX-License-Identifier: GPL-2.0-only
"""What work costs outside the filesystem: so far the system calls of the receiver."""
