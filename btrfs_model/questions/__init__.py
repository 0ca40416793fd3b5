# SPDX-License-Identifier: GPL-2.0-only
"""What users ask of a filesystem, a folder for each question.

Ioctls of the kernel: send, FIEMAP. What a mount does after a crash: logreplay. Tools of
btrfs-progs: receive, check, dumptree, usage. What only the model answers: reads.
"""
