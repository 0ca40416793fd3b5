# SPDX-License-Identifier: GPL-2.0-only
"""What runs in a kernel that is asked: of Python's library alone, so that it starts at once."""
