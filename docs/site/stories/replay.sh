# SPDX-License-Identifier: GPL-2.0-only

# One file, committed.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
echo "old" >/mnt/old
sync

# Two more files, in memory.
echo "made to last" >/mnt/synced
echo "not made to last" >/mnt/waiting

# The fsync of one of them writes its inode, name and content to a log.
xfs_io -c fsync /mnt/synced

# The power fails. The superblock leads to the last commit, and to the log. The next mount replays
# the log, and commits: the log is gone, and the file is in the tree.
power_failure
mount /dev/sdx /mnt
