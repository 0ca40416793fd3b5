# SPDX-License-Identifier: GPL-2.0-only
"""What can still be read of a damaged image, and what of it can be made right again."""
