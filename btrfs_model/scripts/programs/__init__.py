# SPDX-License-Identifier: GPL-2.0-only
"""Programs of a script, a module for each kind."""
