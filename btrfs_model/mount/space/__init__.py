# SPDX-License-Identifier: GPL-2.0-only
"""Room on the device: new chunks and reservations.

Follows ``block-group.c`` and ``volumes.c`` (new chunks) and ``space-info.c`` (the room that calls
reserve). What is allocated where is decided in ``native/writer/space``.
"""
