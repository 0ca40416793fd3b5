# SPDX-License-Identifier: GPL-2.0-only
"""The experiments of commit messages, done again."""
