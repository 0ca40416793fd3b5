# SPDX-License-Identifier: GPL-2.0-only
"""What a word becomes: parameters, patterns, braces and arithmetic in it, splitting, pathnames."""
