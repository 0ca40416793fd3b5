# SPDX-License-Identifier: GPL-2.0-only
"""A mounted filesystem: everything that changes it."""
