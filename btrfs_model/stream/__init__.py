# SPDX-License-Identifier: GPL-2.0-only
"""Send streams: reading, writing and showing them. The format: :mod:`btrfs_model.ondisk.stream`."""
