# SPDX-License-Identifier: GPL-2.0-only
"""The calls of a filesystem in memory, by what they are about."""
