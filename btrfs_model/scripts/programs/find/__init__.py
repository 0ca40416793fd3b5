# SPDX-License-Identifier: GPL-2.0-only
"""find: what it goes through, its tests, and what it prints."""
