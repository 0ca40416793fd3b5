# SPDX-License-Identifier: GPL-2.0-only
"""Block groups, and the room that calls reserve."""
