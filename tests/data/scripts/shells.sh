# SPDX-License-Identifier: GPL-2.0-only
# Shells that a script starts: what they know, and how they end.
A=1; export B=2; set -u
bash -c 'echo "${A:-none} $B $0 $1"' name one
echo 'echo "file $0 $# $*"; exit 3' > /tmp/s.sh
sh /tmp/s.sh a b; echo $?
bash -ec 'false; echo no'; echo $?
echo 'echo from stdin $1' | bash -s arg
bash -c 'cd /; pwd'; bash /tmp/none; echo $?
bash -o pipefail -c 'false | true'; echo $?
bash -c 'trap "echo bye" EXIT; exit 4'; echo $?
f() { echo f; }; bash -c 'f' 2>/dev/null; echo $?
find /tmp -name s.sh -exec sh -c 'echo "found $1"' _ {} \;
echo 'echo x' > /tmp/x.sh; chmod +x /tmp/x.sh; /tmp/x.sh
printf 'a\nb\n' | xargs -n1 bash -c 'echo "got $0"'
