# SPDX-License-Identifier: GPL-2.0-only
"""What every storey uses: errors, counted work, files that are written whole, samples."""
