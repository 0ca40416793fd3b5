# SPDX-License-Identifier: GPL-2.0-only
"""Replay of logs: what a mount does after a crash."""
