# SPDX-License-Identifier: GPL-2.0-only

# A filesystem with forty small files.
mkfs.btrfs -q -n $NODESIZE /dev/sdx
mount /dev/sdx /mnt
for i in {1..40}; do
    echo "this is file $i" >/mnt/file$i
done
sync

# A snapshot copies the root block, and shares all that is below it. Its name is an entry of the
# top: for that, a leaf or more of the top is copied as well.
btrfs subvolume snapshot -r /mnt /mnt/snap

# A second snapshot does the same once more.
btrfs subvolume snapshot -r /mnt /mnt/snap2
