# SPDX-License-Identifier: GPL-2.0-only
# Background jobs: in an order that sleeps give them.
mkfs.btrfs -q -f /dev/sda
mkdir -p /mnt/a
mount /dev/sda /mnt/a
cd /mnt/a
for i in 3 1 2; do (sleep 0.$i; echo job $i) & done
echo started
wait
(while [ ! -e stop ]; do sleep 0.1; done; echo saw it; exit 5) &
waiting=$!
(while [ ! -e stop ]; do echo more >> log; sleep 0.05; done) &
sleep 0.5
kill -0 $waiting && echo lives
touch stop
wait $waiting
echo status $?
wait
test $(wc -l < log) -gt 2 && echo logged
while true; do :; done &
kill $!
wait $!
echo killed $?
(trap 'echo bye' EXIT; trap 'echo told; exit 9' TERM; while true; do sleep 0.1; done) &
sleep 0.3
kill -TERM $!
wait $!
echo status $?
(cd /; sleep 0.2; pwd) &
pwd
wait
(sleep 0.4; exit 3) &
(sleep 0.1; exit 1) &
wait -n
echo first $?
wait -n
echo then $?
cd /
umount /mnt/a
