# SPDX-License-Identifier: GPL-2.0-only
"""The log as Linux 5.10 writes it (``tree-log.c`` of 5.10), without ``log-conflict-list``."""
