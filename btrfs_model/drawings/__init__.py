# SPDX-License-Identifier: GPL-2.0-only
"""Drawings: trees and who shares their blocks, a leaf as it is packed, a stream and its causes."""
