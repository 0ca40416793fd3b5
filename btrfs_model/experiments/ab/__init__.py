# SPDX-License-Identifier: GPL-2.0-only
"""Kernels before and after a change, which do the same in turns."""
