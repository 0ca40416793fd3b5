# SPDX-License-Identifier: GPL-2.0-only
"""The log as Linux 5.10 writes it."""
