# SPDX-License-Identifier: GPL-2.0-only
"""Send in plain Python."""
