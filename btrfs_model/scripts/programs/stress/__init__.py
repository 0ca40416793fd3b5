# SPDX-License-Identifier: GPL-2.0-only
"""fsx and fsstress of fstests: the operations that follow from a seed."""
