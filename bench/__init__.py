# SPDX-License-Identifier: GPL-2.0-only
"""Speed, measured beside programs that do the same: see ``bench/README.md``."""
