# SPDX-License-Identifier: GPL-2.0-only
"""Programs about attributes of files: flags, xattrs, ACLs, capabilities, owners, modes."""
