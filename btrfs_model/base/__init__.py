# SPDX-License-Identifier: GPL-2.0-only
"""What every storey uses: errors, counted work, files that are written whole, samples, charts.

Nothing here knows btrfs, except for the numbers of faults and counters (``enum bm_code``, ``enum
bm_counter``).
"""
