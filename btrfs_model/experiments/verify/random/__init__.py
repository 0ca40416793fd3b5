# SPDX-License-Identifier: GPL-2.0-only
"""What is compared, drawn from a seed: calls, scenarios, trees and logs, and the names in them."""
