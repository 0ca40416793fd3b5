# SPDX-License-Identifier: GPL-2.0-only
"""The devices of a filesystem: the files they are in, the memory that holds one, striped data."""
