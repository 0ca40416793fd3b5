# SPDX-License-Identifier: GPL-2.0-only
"""What users ask of a filesystem: send, receive, FIEMAP, replay, use of space, checks, dumps."""
