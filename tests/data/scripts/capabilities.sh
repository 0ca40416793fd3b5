# SPDX-License-Identifier: GPL-2.0-only
mkfs.btrfs -q -f /dev/sdi; mkdir -p /mnt/sdi; mount /dev/sdi /mnt/sdi; cd /mnt/sdi; touch f g; mkdir d; touch d/h; ln -s f l
try() { setcap "$1" f; echo "$? $1"; getcap f; getfattr -e hex -d -m security f | grep =; }
for text in cap_net_raw+ep cap_net_raw=p cap_chown,cap_fowner+eip "cap_chown=p cap_fowner+i" "cap_chown+ep cap_fowner+p" all=ep all=p all+i "cap_chown+p-p" = "all=eip cap_chown-i"; do try "$text"; done
for text in cap_checkpoint_restore+ep "cap_chown=ep cap_chown-e" CAP_CHOWN+ep "cap_sys_admin+i cap_chown+ei" "=ep cap_chown-ep" 0+ep cap_chown+e "=i cap_chown,cap_bpf+p cap_kill-i" "cap_chown+i cap_kill+ip cap_mknod+p cap_lease+p"; do try "$text"; done
setcap -r f; echo $?; getcap f; setcap -r f 2> /dev/null; echo $?; setcap cap_chown+ep d/h; setcap cap_chown+ep f; getcap -r .; getcap f g; getcap -v f g d; setcap -v cap_chown+ep f; echo $?; setcap -v cap_fowner+ip f; echo $?
setcap -q cap_chown+ep g; setcap cap_chown+ep f cap_fowner+p g; echo $?; getcap f g d; chown 5 f; getcap f; setcap cap_chown+ep f; echo x >> f; getcap f; setcap cap_chown+ep l; getcap l; getcap nope; echo $?
setcap cap_chown+ep nope; echo $?; setcap cap_chown+ep d; chattr +i f; setcap cap_chown+ep f; chattr -i f; btrfs property set . ro true; setcap cap_chown+ep f; setcap -r g; btrfs property set . ro false
setcap cap_chown+ep f; cp f copied; getcap copied; cp -a f copied2; getcap copied2; cd /; umount /mnt/sdi
