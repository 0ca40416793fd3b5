# SPDX-License-Identifier: GPL-2.0-only
"""Assignments of the course: what is asked, how it is checked, and what it is worth."""

from btrfs_model.teaching.grading import ASSIGNMENTS, grade

__all__ = ["ASSIGNMENTS", "grade"]
