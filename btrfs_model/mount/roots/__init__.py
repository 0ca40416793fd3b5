# SPDX-License-Identifier: GPL-2.0-only
"""Root items, and what the root tree says of subvolumes."""
