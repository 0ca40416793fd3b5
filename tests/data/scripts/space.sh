# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f -b 1G /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi
mkdir d d/e; xfs_io -f -c "pwrite -q 0 1M" d/f; cp --reflink d/f d/e/g; ln d/f d/h; xfs_io -f -c "pwrite -q 0 100k" f2; truncate -s 1G big
sync; df /mnt/sdi | tr -s " "; df -T -P d | tail -1 | awk '{print NF, $2, $3, $6}'; df -h . | tr -s " "; df /dev/sdi | wc -l; df nope; df -h d nope | wc -l
stat -f -c "%S %s %T %b %a %f %c %d" .; du .; du -s d; du -a d; du -sk d f2; du -b big d/f; du -sm big; du -d 1 .; du -c d f2; du --apparent-size -s d/f; du nope
ls -R .; ls -lhR d | awk "{print \$1, \$2, \$5, \$9}"; ls -R d d/e; rm d/f d/h big; btrfs filesystem sync .; df -P . | tr -s " "; du -s .
cd /; umount /mnt/sdi
