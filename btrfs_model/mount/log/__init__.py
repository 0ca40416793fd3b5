# SPDX-License-Identifier: GPL-2.0-only
"""Log trees: what fsync writes instead of a commit."""
