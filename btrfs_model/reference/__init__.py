# SPDX-License-Identifier: GPL-2.0-only
"""The algorithms of the kernel in plain Python, to be read beside the C kernels."""
