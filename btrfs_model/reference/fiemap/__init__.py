# SPDX-License-Identifier: GPL-2.0-only
"""FIEMAP in plain Python."""
