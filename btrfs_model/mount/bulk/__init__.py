# SPDX-License-Identifier: GPL-2.0-only
"""The same call on many files."""
