# SPDX-License-Identifier: GPL-2.0-only
"""Filesystems with a history: made in a kernel, asked about there, and compared with the model."""
