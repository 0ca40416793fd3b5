# SPDX-License-Identifier: GPL-2.0-only
"""Trees for people and programs to read: as text, as lines of JSON, as a table in Parquet."""
