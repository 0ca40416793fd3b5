# SPDX-License-Identifier: GPL-2.0-only
"""The charts of the workloads: a module for each, what they show besides figures, and panels."""
