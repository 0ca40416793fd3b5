# SPDX-License-Identifier: GPL-2.0-only
"""Which tree blocks are read, and which are in memory."""
