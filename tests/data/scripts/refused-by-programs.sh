# SPDX-License-Identifier: GPL-2.0-only
# What programs say of what they refuse.
mkfs.btrfs -q -f /dev/sdb > /dev/null 2>&1
mkdir -p /mnt/sdb; mount /dev/sdb /mnt/sdb; cd /mnt/sdb
echo x > 'lo ng'; mkdir d
filefrag nope; echo $?; filefrag nope lo\ ng; echo $?; filefrag -v d; ln -s loop loop; filefrag loop; echo $?
chattr +c nope; echo $?; chattr +c nope lo\ ng; echo $?; chattr +i loop; echo $?
mv nope .; echo $?; mv 'lo ng' .; mv d d; echo $?; mv d .; mv -T nope d; mkdir d/lo e; mv d/lo 'lo ng'; mv 'lo ng' d/lo 2>&1 | cat; mv -T 'lo ng' e
truncate -s c x; echo $?; truncate; truncate -s 5; echo $?
wc 'lo ng' 'no pe' d; wc -c 'no pe'; head 'no pe' d; md5sum 'no pe'; tee d < /dev/null; od d; cmp d nope; sort d
dd if='no pe' of=x; echo 12 > y; dd if=/dev/zero of=y bs=3 count=1 oflag=append conv=notrunc status=none; od -c y; dd if=y obs=2 count=1 of=z status=noxfer; stat -c %s z
rmdir . ./d/.; cp -r . inner; find inner | sort
echo -n | btrfs receive --dump; printf abc | btrfs receive --dump; echo no stream at all, but long enough | btrfs receive --dump; echo -n | btrfs receive .; echo abc | btrfs receive .; echo $?
btrfs send -p nope nope2; btrfs sub create s1 > /dev/null; btrfs sub snap -r s1 r1; btrfs send -q -p s1 r1; btrfs sub snap s1 r1/s2; echo $?
printf 'b\na\n' > list; while read p; do echo $p; sort list; done < list
xfs_io -c label -c "label -s foo" -c "label -x" -c label .; echo $?
touch -d 2020-01-01 'lo ng' y z x list d d/lo loop e inner r1 s1 . 2> /dev/null
find d 'lo ng' loop -ls; find . -name y -execdir echo {} \; -execdir pwd \; | sed s,.*/,,; echo y | find . -name y -ok echo got {} \;
cd /; umount /mnt/sdb
