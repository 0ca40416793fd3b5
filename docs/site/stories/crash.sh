# SPDX-License-Identifier: GPL-2.0-only

# One file, committed.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
echo "the first version" >/mnt/file
sync

# It is written again, and there is a second file. Both are in memory alone.
echo "the second version" >/mnt/file
echo "another" >/mnt/other

# The power fails. The next mount finds the last commit, whole: the first version, and no other
# file.
power_failure
mount /dev/sdx /mnt
