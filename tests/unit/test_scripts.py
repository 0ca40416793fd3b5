# SPDX-License-Identifier: GPL-2.0-only
"""Scripts on the model: where they are found, what they cannot do, what they say of time."""

from __future__ import annotations

import csv
import errno
import json
import mmap
import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import corpus
import pytest
from click.testing import CliRunner

import btrfs_model as bm
from btrfs_model.base.errors import BtrfsModelError
from btrfs_model.cli import cli
from btrfs_model.scripts.answer import beside
from btrfs_model.scripts.find import scripts_in
from btrfs_model.scripts.host import why_not
from btrfs_model.scripts.program import programs
from btrfs_model.scripts.programs.btrfs.command import _COMMANDS
from btrfs_model.shell.state import UnknownError

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
MADE = "mkfs.btrfs -q -f /dev/sdb; mount /dev/sdb /mnt/sdb\n"


# ------------------------------------------------------------------------------------- found --

MAIL = """\
From: A <a@example.org>
Subject: [PATCH] btrfs: something
Content-Type: text/plain; charset=utf-8

There is a problem, the following script shows it:

  $ cat test.sh
  #!/bin/bash

  DEV=/dev/sdi
  mkfs.btrfs -f -q $DEV

  mount $DEV /mnt/sdi
  echo hello > /mnt/sdi/foo
  cat /mnt/sdi/foo

  $ ./test.sh
  hello

So it is shown.

Signed-off-by: A <a@example.org>
---
 fs/btrfs/send.c | 2 +-

diff --git a/fs/btrfs/send.c b/fs/btrfs/send.c
"""
PROMPTS = """\
    btrfs: another

    Like this:

      $ mkfs.btrfs -q -f /dev/sdc
      $ mount /dev/sdc /mnt
      # a file
      $ for i in 1 2; do
      >   echo $i >> /mnt/f
      > done
      $ xfs_io -c fsync /mnt/f
      <power failure>
      $ cat /mnt/f
      1
      2

    Fix it.
"""


@pytest.mark.claim(
    "A script is found in a mail, a patch or a commit message, with what is shown as its output.",
    judge="unit",
)
def test_found_in_a_mail() -> None:
    [found] = scripts_in(MAIL)
    assert found.text.startswith("#!/bin/bash\n")
    assert found.text.rstrip().endswith("cat /mnt/sdi/foo")
    assert found.printed == ("hello",)


def test_found_behind_prompts(tmp_path: Path) -> None:
    [found] = scripts_in(PROMPTS)
    assert found.printed == ("1", "2")
    assert "power_failure\ncat /mnt/f" in found.text
    (tmp_path / "mail").write_text(PROMPTS)
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / "mail")], catch_exceptions=False)
    assert ran.exit_code == 0
    assert "Of 2 lines that the message shows are equal (times apart): 2 on v6.18.44." in ran.output
    shown = CliRunner().invoke(cli, ["script", str(tmp_path / "mail"), "--show"])
    assert shown.output == found.text


def test_nothing_is_found() -> None:
    with pytest.raises(BtrfsModelError, match="there is no script in it"):
        scripts_in("Subject: hello\n\nThere is nothing.\n")


# ----------------------------------------------------------------------------------- refused --


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.sh", "true\nif true; then\n", "a.sh: line 2: `then` must be followed by"),
        ("a.sh", "true\nmount -z\n", "a.sh: line 2: mount: -z: this option is not known"),
        ("a.txt", "Nothing here.\n", "a.txt: there is no script in it"),
        ("a.mail", PROMPTS.replace("xfs_io", "dbus-x; xfs_io -Q"),
         "a.mail: script from line 5: line 6: xfs_io: -Q: this option is not known"),
    ],
)  # fmt: skip
def test_one_line_with_file_and_line(tmp_path: Path, name: str, text: str, told: str) -> None:
    (tmp_path / name).write_text(text)
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / name)])
    assert isinstance(ran.exception, BtrfsModelError)
    assert f"{tmp_path}/{told}" in str(ran.exception)


@pytest.mark.claim("What a script asks for and is not known is told, with its line.", judge="unit")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("true\nmkfs.btrfs --nope /dev/sdb\n", "line 2: mkfs.btrfs: --nope: this option is"),
        (MADE + "btrfs balance start -x /mnt/sdb\n", "btrfs balance start: the option -x is not"),
        (MADE + "xfs_io -f -c madvise /mnt/sdb/f\n", "line 2: xfs_io: madvise: this command is"),
        (MADE + "mkfifo /mnt/sdb/p; echo a > /mnt/sdb/p\n", "line 2: p: a named pipe has no other"),
        (MADE + "btrfs device add /dev/sdc /mnt/sdb\n", "line 2: btrfs device add: filesystems of"),
        (MADE + "timeout 1 sleep 2\n", "line 2: timeout 1: the command takes longer"),
        (MADE + "sudo -u nobody ls\n", "line 2: sudo -u nobody ls: say a command, for root"),
        (MADE + "xfs_io -f -c 'pwrite -B 0 1' /mnt/sdb/f\n", "line 2: xfs_io: pwrite: -B"),
        (MADE + "cd /mnt/sdb; touch n; chattr +C n; xfs_io -d -c 'pwrite -q -b 64K 0 64K' n\n"
         "xfs_io -d -c 'pwrite -N -V 1 -b 64K 0 64K' n\n", "line 3: xfs_io: .*may not wait"),
        (MADE + "find /mnt/sdb -context x\n", "line 2: find: -context: this test is not known"),
        (MADE + "mount -o remount,noacl /mnt/sdb\n", "line 2: mount: mount option 'noacl' is not"),
        ("mkfs.btrfs -q /dev/sdb; mount -o sync /dev/sdb /mnt/b\n", "mount option 'sync' is not"),
        ("coproc cat\n", "CoprocClause: this construct of bash is not known"),
        ("while :; do :; done\n", "the script ran for too many commands"),
        ("cat /dev/zero\n", "/dev/zero has no end"),
        ("yes\n", "yes has no end"),
        ("yes | wc -l\n", "yes has no end"),
    ],
)  # fmt: skip
def test_what_is_not_known(text: str, told: str) -> None:
    with pytest.raises(BtrfsModelError, match=told):
        bm.script(text, steps=10_000)


def test_dd_writes_until_the_filesystem_is_full() -> None:
    # as on Linux 6.18, with the times that are none here
    result = bm.script(
        "mkfs.btrfs -q /dev/sdb; mount /dev/sdb /mnt/b\n"
        "dd if=/dev/zero of=/mnt/b/f bs=1M; echo $?; stat -c %s /mnt/b/f\n"
        "dd if=/dev/zero of=/mnt/b/f bs=3000000 conv=notrunc status=noxfer\n",
        size=200 << 20,
    )
    assert result.output.decode().splitlines() == [
        "dd: error writing '/mnt/b/f': No space left on device",
        "120+0 records in",
        "119+0 records out",
        "124780544 bytes (125 MB, 119 MiB) copied, 0 s, Infinity B/s",
        "1",
        "124780544",
        "dd: error writing '/mnt/b/f': No space left on device",
        "1+0 records in",
        "0+0 records out",
    ]


def test_a_mapping_without_room_is_the_end_of_its_program() -> None:
    # status and contents as on Linux 6.18
    result = bm.script(
        "mkfs.btrfs -q /dev/sdb; mount /dev/sdb /mnt/b; cd /mnt/b\n"
        "xfs_io -f -c 'pwrite -q 0 40M' big; cp --reflink=always big clone; sync\n"
        "dd if=/dev/zero of=fill bs=1M status=none 2>&1; sync\n"
        "xfs_io -c 'mmap 0 40M' -c 'mwrite -S 0x62 0 40M' -c 'stat -r' big; echo $?\n"
        "cd /; umount /mnt/b; mount /dev/sdb /mnt/b; cmp /mnt/b/clone /mnt/b/big; echo $?\n",
        size=200 << 20,
    )
    assert result.stdout.decode().splitlines()[1:] == ["135", "0"]


def test_an_unknown_program_is_bashs_error() -> None:
    result = bm.script("nosuch a; echo $?")
    assert result.output == b"script: line 1: nosuch: command not found\n127\n"


# -------------------------------------------------------------------------------- shut in ----

OUTSIDE = """\
echo bad > {path}
sed -n 'w {path}' /etc/passwd
echo x | sed 'w {path}'
echo x | awk '{{ print > "{path}" }}'
echo x | awk '{{ system("touch {path}") }}'
echo x | perl -e 'open(F, ">{path}"); print F 1'
ln -s {path} /tmp/l; echo x > /tmp/l
rm -rf / ; rm -rf {folder}; rm -rf --no-preserve-root /
cp /etc/passwd {path}; dd if=/dev/zero of={path} count=1; mv /etc {path}
sort -o {path} /etc/hostname; tail -c 1 {secret}; cat {secret}; od {secret}; diff {secret} /dev/null
(cd {folder} && echo x > file); exec > {path}; echo x
"""


@pytest.mark.claim("A script changes and sees nothing of the machine.", judge="unit")
@pytest.mark.parametrize("text", OUTSIDE.splitlines())
def test_nothing_of_the_machine_is_changed(tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret\n")
    path = tmp_path / "made"
    try:
        result = bm.script(text.format(path=path, folder=tmp_path, secret=secret))
    except UnknownError:
        pass
    else:
        assert b"the secret" not in result.output
    assert sorted(tmp_path.iterdir()) == [secret]
    assert secret.read_text() == "the secret\n"


@pytest.mark.parametrize(
    "program",
    [
        'open(F, "<", "/etc/passwd"); print <F>',
        'use Socket; socket(S, PF_INET, SOCK_STREAM, 0) ? print "connected" : print "refused"',
        'fork() // print "no fork"; exec("/bin/sh", "-c", "echo out")',
    ],
)  # fmt: skip
def test_a_filter_is_alone(program: str) -> None:
    """Of files, sockets and processes a filter sees none."""
    quoted = program.replace("'", "'\\''")
    result = bm.script(f"echo x | perl -e '{quoted}' 2>/dev/null\n")
    assert not any(one in result.output for one in (b"root:", b"connected"))


def test_a_fork_bomb_ends() -> None:
    with pytest.raises(BtrfsModelError, match=r"nested too deeply|too many commands"):
        bm.script(":(){ :|:& };:", steps=2000)


# ------------------------------------------------------------------------------------- times --


def test_the_clock_tells_predictions(tmp_path: Path) -> None:
    script = MADE + (
        "mkdir /mnt/sdb/d; for ((i=0;i<2000;i++)); do echo -n > /mnt/sdb/d/f$i; done\n"
        "a=$(date +%s%N)\nxfs_io -c fsync /mnt/sdb/d\nb=$(date +%s%N); echo $((b - a))\n"
    )
    sides = ("v5.16", "v5.16 + log-dir-index-only")
    results = [bm.script(script, behaviour=one, device="samsung-850-evo") for one in sides]
    took = [int(result.stdout) for result in results]
    assert took[0] > took[1] > 0
    calls = results[0].steps
    assert calls.what.iloc[-1] == "fsync /mnt/sdb/d"
    assert round(calls.seconds.iloc[-1] * 1e9) == pytest.approx(took[0], abs=2000)
    (tmp_path / "script.sh").write_text(script)
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / "script.sh"), "--before", "v5.16",
                                   "--behaviour", "v5.16 + log-dir-index-only", "--device",
                                   "samsung-850-evo"], catch_exceptions=False)  # fmt: skip
    assert ran.exit_code == 0
    heading, row = (line.split("\t") for line in ran.output.splitlines()[-2:])
    assert heading == ["lines", *sides, "ratio", "depends on", "calls"]
    assert row[3:] == ["1.32 (1.18 to 1.5)", "device samsung-850-evo; no worker", "fsync"]


def test_a_filesystem_outlives_its_script(tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text(MADE + "echo data > /mnt/sdb/f; sync\n")
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / "s.sh"), "--size", "1G", "--out",
                                   str(tmp_path / "images")], catch_exceptions=False)  # fmt: skip
    assert ran.exit_code == 0
    with bm.open(tmp_path / "images/dev-sdb.img") as fs:
        assert fs.read_file(5, "f") == b"data\n"


# ------------------------------------------------------------------------------------- steps --

STEPS = (
    MADE
    + """cd /mnt/sdb; mkdir d
for ((i = 0; i < 1000; i++)); do
    echo abc > /mnt/sdb/d/f$i
done
mkdir e; mkdir e; echo more >> d/f1; cat d/f1 > /dev/null
xfs_io -f -c 'pwrite -q 0 8K' -c 'mmap 0 8K' -c 'mwrite 0 4K' -c 'fpunch 0 4G' e/x
cat e; cat d/none; echo x > e; rmdir d
btrfs subvolume snapshot -r . s; btrfs send -q -f /tmp/s s; echo x > s/new
mkdir r; btrfs receive -q -f /tmp/s r; btrfs receive -q -f /tmp/s r
mount -o remount,ro /dev/sdb; echo y > d/f1; mkdir f; xfs_io -c 'pwrite 0 1' d/f1
"""
)


@pytest.mark.claim(
    "A row of a script's steps has the bytes that a call read, wrote or sent, and its errno, also "
    "where a loop's calls are made together.",
    judge="unit",
)
def test_bytes_and_errors_of_calls() -> None:
    result = bm.script(STEPS)
    steps = result.steps
    size = len(bm.script(STEPS + "cat /tmp/s\n").stdout) - len(result.stdout)
    told = [tuple(row) for row in steps[["line", "what", "bytes", "errno"]].itertuples(index=False)]
    assert told == [
        (2, "mkdir", 0, 0), (4, "create 1,000 files", 4000, 0), (6, "mkdir", 0, 0),
        (6, "mkdir", 0, errno.EEXIST), (6, "write", 5, 0), (6, "read", 9, 0), (6, "read", 0, 0),
        (7, "create", 0, 0), (7, "pwrite", 8192, 0), (7, "mwrite", 4096, 0), (7, "fallocate", 0, 0),
        (8, "open", 0, errno.ENOENT), (8, "open", 0, errno.EISDIR),
        (8, "rmdir", 0, errno.ENOTEMPTY),
        (9, "subvolume snapshot", 0, 0), (9, "send s", size, 0), (9, "create", 0, errno.EROFS),
        (10, "mkdir", 0, 0), (10, "receive", size, 0), (10, "receive", size, errno.EEXIST),
        *[(11, "refused (read-only mount)", 0, errno.EROFS)] * 3,
    ]  # fmt: skip
    assert steps.seconds[steps.errno == errno.EROFS].isna().all()


def test_what_a_call_inside_another_does_is_counted_once() -> None:
    """A call that waits for files which were collected, or that syncs itself."""
    loop = "for ((i = 0; i < 1000; i++)); do echo -n > /mnt/sdb/f$i; done; "
    alone, both = (bm.script(MADE + loop + one).steps for one in ("", "mkdir /mnt/sdb/d"))
    assert both.what.tolist() == ["create 1,000 files", "mkdir"]
    assert both.work[0] == alone.work[0]
    assert sum(both.work[1].values()) < 20
    synced = bm.script(MADE + "xfs_io -f -s -c 'pwrite 0 8K' /mnt/sdb/f").steps
    assert synced.what.tolist() == ["create", *["fsync /mnt/sdb/f"] * 2, "pwrite"]
    assert "btrfs_log_inode" in synced.work[2]
    assert "btrfs_log_inode" not in synced.work[3]


def test_a_write_that_ends_early() -> None:
    steps = bm.script(MADE + "cd /mnt/sdb; head -c 200M /dev/zero > f; cat g", size=128 << 20).steps
    write, rest, missing = steps.iloc[-3:].itertuples()
    assert (write.what, write.errno) == ("write", 0)
    assert 0 < write.bytes < 128 << 20
    assert (rest.what, rest.bytes, rest.errno) == ("write", 0, errno.ENOSPC)
    assert (missing.what, missing.errno) == ("open", errno.ENOENT)


# ----------------------------------------------------------------------------------- regions --

REGIONS = (
    MADE
    + """a=$(date)
for ((i = 0; i < 100; i++)); do echo -n > /mnt/sdb/f$i; done
sync
mkdir /mnt/sdb/d; b=$EPOCHREALTIME
xfs_io -c fsync /mnt/sdb/d
c=$(date); chmod 600 /mnt/sdb/f1; sync; echo x >> /mnt/sdb/f2; echo y >> /mnt/sdb/f2; d=$(date)
btrfs subvolume snapshot -r /mnt/sdb /mnt/sdb/s
time btrfs send -f /tmp/s /mnt/sdb/s
"""
)


@pytest.mark.claim(
    "A timed region of a script says what its time depends on: device, commits, worker, pipe, "
    "calls without a cost.",
    judge="unit",
)
def test_what_a_time_depends_on(tmp_path: Path) -> None:
    result = bm.script(REGIONS)
    unnamed = "no device named: not waited for"
    assert result.regions.depends_on.tolist() == [
        f"{unnamed}; 1 commit", f"{unnamed}; no worker",
        f"{unnamed}; 1 commit; without a cost: write", f"{unnamed}; 1 commit", "no worker; no pipe",
    ]  # fmt: skip
    assert result.regions[["first", "last"]].to_numpy().tolist() == [
        [2, 5], [5, 7], [7, 7], [7, 9], [9, 9]
    ]  # fmt: skip
    named = bm.script(REGIONS, device="samsung-850-evo").regions
    assert named.depends_on.tolist()[:2] == [
        "1 commit, not waited for", "device samsung-850-evo; no worker",
    ]  # fmt: skip
    assert (named.high >= named.seconds).all()
    assert bm.script(MADE).regions.empty
    (tmp_path / "s.sh").write_text(REGIONS)
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / "s.sh")], catch_exceptions=False)
    assert "lines\tv6.18.44\tdepends on\tcalls\n" in ran.output
    assert f"\t{unnamed}; 1 commit\t" in ran.output
    as_json = CliRunner().invoke(cli, ["script", str(tmp_path / "s.sh"), "--json"])
    [side] = json.loads(as_json.stdout)["sides"]
    assert side["regions"][1]["depends_on"] == [unnamed, "no worker"]


def test_a_region_that_depends_on_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "s.sh").write_text(MADE + "time for i in 1 2; do echo -n > /mnt/sdb/$i; done\n")
    sides = ["--before", "v5.16", "--after", "v6.18"]
    ran = CliRunner().invoke(cli, ["script", str(tmp_path / "s.sh"), *sides])
    assert "\tnot told\twork alone\tcreate\n" in ran.output
    assert "lines 2, ratio not told: both sides do the same" in ran.output


# ------------------------------------------------------------------------------------ folder --


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with a script, and what it sources."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "common").write_text("odd() { ls >(cat); }\nhello() { echo $1 from $0; }\n")
    (tmp_path / "tests/one").write_text(
        '. ./common; hello $WHO; echo x > made; ls; local_() { false; local x=$?; echo "$x"; }\n'
        "local_; tool a; ./tool a\n"
    )
    tool = tmp_path / "tool"
    tool.write_text("echo tool $1\n")
    tool.chmod(0o755)
    return tmp_path


def test_a_folder_is_copied(library: Path) -> None:
    """A function of a library that has something unknown in it is refused when it is called."""
    arguments = ["script", "--folder", str(library), "--set", "WHO=me", str(library / "tests/one")]
    ran = CliRunner().invoke(cli, arguments)
    assert ran.stdout.splitlines() == [
        "me from tests/one", "common", "made", "tests", "tool", "1",
        "tests/one: line 2: tool: command not found", "tool a",
    ]  # fmt: skip
    assert not (library / "made").exists()
    with pytest.raises(UnknownError, match=r">\( \)"):
        bm.script(". ./common; odd", folder=library)
    wrong = CliRunner().invoke(cli, [*arguments[:3], "--set", "WHO", *arguments[5:]])
    assert wrong.exit_code == 2
    assert "'WHO' is not NAME=VALUE" in wrong.output


def test_programs_that_the_model_does_not_have() -> None:
    with pytest.raises(UnknownError, match="line 1: src/thing: this program is not known"):
        bm.script("not_modelled src/thing")


@pytest.mark.claim("A mapped device that drops writes leaves what a power failure leaves.")
def test_a_device_that_drops_writes() -> None:
    text = """
        mkfs.btrfs -q -f /dev/sdb; size=$(blockdev --getsz /dev/sdb)
        table="0 $size flakey /dev/sdb 0 180 0"
        drops="0 $size flakey /dev/sdb 0 0 180 1 drop_writes"
        dmsetup create flaky --table "$table"; mount /dev/mapper/flaky /mnt/x; cd /mnt/x
        echo kept > a; mkdir d; sync; echo lost > b; echo synced > d/c; xfs_io -c fsync d/c
        dmsetup suspend --nolockfs flaky; echo "$drops" | dmsetup load flaky; dmsetup resume flaky
        echo never > e; sync; cd /; umount /mnt/x
        dmsetup suspend --nolockfs flaky; dmsetup load flaky --table "$table"; dmsetup resume flaky
        mount /dev/mapper/flaky /mnt/x; find /mnt/x | sort; cat /mnt/x/d/c
        dmsetup remove flaky; umount /mnt/x
        dmsetup remove flaky && mount /dev/sdb /mnt/x && ls /mnt/x
    """
    result = bm.script(text)
    assert result.stdout.decode().split() == ["/mnt/x", "/mnt/x/a", "/mnt/x/d", "/mnt/x/d/c",
                                              "synced", "a", "d"]  # fmt: skip
    assert b"remove ioctl on flaky failed: Device or resource busy" in result.stderr


def test_files_that_lose_their_names_while_they_are_open() -> None:
    result = bm.script("""
        mkfs.btrfs -q -f /dev/sda; mkdir -p /mnt/a; mount /dev/sda /mnt/a
        orphans() { sync; btrfs inspect-internal dump-tree -t 5 /dev/sda | grep -c ORPHAN; }
        multi_open_unlink -f /mnt/a/x -n 5 -e 2 -v 100 -s 5 &
        sleep 1; umount /mnt/a; orphans; wait; orphans; umount /mnt/a; echo $?
    """)
    assert result.stdout.split() == [b"5", b"0", b"0"]
    assert result.stderr == b"umount: /mnt/a: target is busy.\n"


# As Linux 6.18.44 did on a loop device over a file of FUSE that refused writes.
ERRORS = """
fails() { dmsetup suspend --nolockfs e; dmsetup load e --table "0 $size error /dev/sdb 0"
          dmsetup resume e; }
works() { dmsetup suspend --nolockfs e; dmsetup load e --table "0 $size linear /dev/sdb 0"
          dmsetup resume e; }
again() { umount /mnt/b; mount /dev/mapper/e /mnt/b; }
mkdir -p /mnt/b
mkfs.btrfs -q -f /dev/sdb; size=$(blockdev --getsz /dev/sdb)
dmsetup create e --table "0 $size linear /dev/sdb 0"
mount /dev/mapper/e /mnt/b
xfs_io -f -c "pwrite -q -S 1 0 1M" /mnt/b/a
cp --reflink=always /mnt/b/a /mnt/b/b
sync
"""


@pytest.mark.parametrize(("calls", "printed"), [
    # data that a fsync writes are lost, and nothing else
    ('fails; xfs_io -c "pwrite -q -S 2 0 64K" -c fdatasync /mnt/b/b; touch /mnt/b/x; works; sync\n'
     "again; ls /mnt/b; cmp /mnt/b/a /mnt/b/b",
     "fdatasync: Input/output error\na\nb\nx\n"),
    ('fails; xfs_io -d -c "pwrite -q -S 2 0 64K" /mnt/b/b; works; sync\n'
     "again; cmp /mnt/b/a /mnt/b/b", "pwrite: Input/output error\n"),
    ('fails; xfs_io -c "mmap -rw 0 64K" -c "mwrite 0 64K" -c "msync -s 0 64K" /mnt/b/b; works\n'
     "again; cmp /mnt/b/a /mnt/b/b", "msync: Input/output error\n"),
    ('xfs_io -c "pwrite -q -S 2 0 64K" /mnt/b/b; fails; xfs_io -c "pwrite -q 64K 64K" /mnt/b/b\n'
     "works; sync; again; cmp /mnt/b/a /mnt/b/b",
     "/mnt/b/a /mnt/b/b differ: char 1, line 1\n"),
    # a commit, or a log, ends the mount
    ("touch /mnt/b/new; fails; sync; echo $?; btrfs filesystem sync /mnt/b; works\n"
     "echo > /mnt/b/a; again; ls /mnt/b",
     "0\nERROR: Could not sync filesystem: Read-only file system\n"
     "script: line 15: /mnt/b/a: Read-only file system\na\nb\n"),
    ("mkdir /mnt/b/d; sync; touch /mnt/b/d/1; fails; xfs_io -c fsync /mnt/b/d; works\n"
     "again; ls /mnt/b/d", "fsync: Input/output error\n"),
    ("fails; btrfs subvolume snapshot /mnt/b /mnt/b/snap > /dev/null; works; again; ls /mnt/b",
     "ERROR: cannot snapshot '/mnt/b': Input/output error\na\nb\n"),
    ("fails; touch /mnt/b/c; umount /mnt/b; mount /dev/mapper/e /mnt/b; works\n"
     "mount /dev/mapper/e /mnt/b; ls /mnt/b",
     "mount: /mnt/b: can't read superblock on /dev/mapper/e.\n"
     "       dmesg(1) may have more information after failed mount system call.\na\nb\n"),
])  # fmt: skip
def test_a_device_that_refuses_writes(calls: str, printed: str) -> None:
    result = bm.script(f"exec 2>&1{ERRORS}{calls}", size=1 << 30)
    assert result.stdout.decode() == printed


@pytest.mark.claim(
    "A log of writes has each state that a crash leaves: every one mounts, and is clean."
)
def test_a_device_that_notes_writes() -> None:
    text = """
        size=$(blockdev --getsz /dev/sdb)
        dmsetup create lw --table "0 $size log-writes /dev/sdb /dev/sdc"
        mkfs.btrfs -q -f /dev/mapper/lw; dmsetup message lw 0 mark mkfs; mount /dev/mapper/lw /mnt
        for i in 1 2 3; do echo $i > /mnt/f$i; xfs_io -c fsync /mnt/f$i; done
        mkdir /mnt/d; sync; dmsetup message lw 0 mark synced; touch /mnt/never; umount /mnt
        dmsetup remove lw; log="replay-log --log /dev/sdc"
        $log --replay /dev/sdd --end-mark mkfs; mount /dev/sdd /mnt; echo /mnt/*; umount /mnt
        n=0
        while n=$($log --find --next-fua --start-entry $n 2> /dev/null); do
            n=$((${n%@*} + 1)); $log --replay /dev/sdd --limit $n
            btrfs check /dev/sdd > /dev/null && mount /dev/sdd /mnt && echo /mnt/*; umount /mnt
        done
        $log --replay /dev/sdd --end-mark synced; mount /dev/sdd /mnt; echo /mnt/*; umount /mnt
        $log --replay /dev/sde --check fua --fsck 'btrfs check /dev/sde > /dev/null && echo clean'
    """
    lines = bm.script(text, size=1 << 30).stdout.decode().splitlines()
    files = "/mnt/f1 /mnt/f2 /mnt/f3"
    synced = f"/mnt/d {files}"
    assert lines == [
        "/mnt/*", "/mnt/f1", "/mnt/f1 /mnt/f2", files, synced, f"{synced} /mnt/never", synced,
        *["clean"] * 5,
    ]  # fmt: skip


@pytest.mark.claim("A file that has no name yet gets one by a link, or is gone after a crash.")
def test_files_without_a_name() -> None:
    text = """
        mkfs.btrfs -q -f /dev/sdb; mount /dev/sdb /mnt; mkdir /mnt/d; cd /mnt
        xfs_io -T -c "pwrite 0 64K" -c fsync -c stat . | grep -e size -e ino; ls -A .
        xfs_io -T -c "pwrite -q -S 0xab 0 8K" -c "flink d/x" -c fsync d; stat -c "%s %h" d/x
        xfs_io -T -c "pwrite -q 0 8K" -c "flink d/x" .; xfs_io -T -c "pwrite 0 1" /mnt/d/x
        power_failure; cd /; find /mnt; touch /mnt/n; stat -c %i /mnt/n
        umount /mnt; btrfs check /dev/sdb &> /dev/null && echo clean
    """
    result = bm.script(text)
    assert result.stdout.decode().split() == [
        "stat.ino", "=", "258", "stat.size", "=", "65536", "d", "8192", "1", "/mnt", "/mnt/d",
        "/mnt/d/x", "260", "clean",
    ]  # fmt: skip
    assert result.stderr == b"flink: File exists\n/mnt/d/x: Not a directory\n"


def test_a_tree_is_dumped_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "dump.sh"
    file.write_text("mkfs.btrfs -q -f /dev/sdb; btrfs inspect-internal dump-tree -t 5 /dev/sdb\n")
    ran = CliRunner().invoke(cli, ["script", str(file)])
    assert ran.exit_code == 0, ran.output
    assert "(256 INODE_REF 256)" in ran.output


def test_programs_that_run_others() -> None:
    text = MADE + (
        "sudo mkdir /mnt/sdb/d; nice -n 19 ionice -c 3 touch /mnt/sdb/d/a\n"
        "timeout 9 ls /mnt/sdb/d\n"
        "sudo A=1 env | grep ^A; nohup false; echo $?\n"
    )
    assert bm.script(text).stdout.split() == [b"a", b"A=1", b"1"]


def test_sentences_about_mkfs_are_no_scripts() -> None:
    prose = "A title\n\nThis:\n\n  would allow mkfs.btrfs to detect\n  more of it\n"
    with pytest.raises(BtrfsModelError, match="there is no script in it"):
        scripts_in(prose)
    one = scripts_in("A title\n\nThis fails:\n\n  $ sudo mkfs.btrfs -f /dev/sda\n  ERROR: no\n")
    assert [(found.text, found.printed) for found in one] == [
        ("sudo mkfs.btrfs -f /dev/sda\n", ("ERROR: no",))
    ]


def test_who_sleeps_lets_a_thread_commit() -> None:
    text = """
        mkfs.btrfs -q -f /dev/sdb; mount -o commit=1 /dev/sdb /mnt; echo data > /mnt/f
        sleep %s; power_failure; cat /mnt/f; ls /mnt
    """
    # names with the transaction, data when they have waited for long
    told = [bm.script(text % seconds).stdout.decode().split() for seconds in ("0.5", "2", "40")]
    assert told == [[], ["f"], ["data", "f"]]


def test_volumes_and_parts_of_devices() -> None:
    text = """
        dmsetup create meta --table "0 4096 linear /dev/sdb 10240"
        dmsetup create data --table "0 409600 linear /dev/sdb 14336"
        dmsetup create pool --table "0 409600 thin-pool /dev/mapper/meta /dev/mapper/data 128 1"
        dmsetup create vol --table "0 819200 thin /dev/mapper/pool 7"
        dmsetup message pool 0 "create_thin 7"
        dmsetup create vol --table "0 819200 thin /dev/mapper/pool 7"
        blockdev --getsz /dev/mapper/vol; blockdev --getsz /dev/mapper/data
    """
    result = bm.script(text)
    assert result.stdout.split() == [b"819200", b"409600"]
    assert b"create ioctl on vol failed: No data available" in result.stderr
    with pytest.raises(UnknownError, match="a part of a device is known for linear alone"):
        bm.script('dmsetup create x --table "0 8 log-writes /dev/sdb /dev/sdc"')


def test_sums_of_trees() -> None:
    text = MADE + (
        "cd /mnt/sdb; mkdir d; echo a > d/a; ln -s a d/l; setfattr -n user.x -v y d/a\n"
        "fssum -A -f -w /tmp/sum d; fssum -r /tmp/sum d; cp -a d e; fssum -r /tmp/sum e\n"
        "echo b > d/a; fssum -r /tmp/sum d; echo $?\n"
    )
    told = bm.script(text).stdout.decode().splitlines()
    assert told == ["OK", "OK", "differs: a", "FAIL", "1"]


def test_files_that_cannot_all_be_made_run_one_by_one() -> None:
    """What is refused is met by the command that meets it on a kernel; nothing is told twice."""
    text = MADE + (
        "btrfs quota enable /mnt/sdb; btrfs qgroup limit 256K 0/5 /mnt/sdb; sync; echo begun\n"
        "for ((i = 0; i < 10000; i++)); do echo -n > /mnt/sdb/file_$i || break; done\n"
        "echo ended; ls /mnt/sdb | wc -l; echo $i\n"
    )
    result = bm.script(text)
    begun, ended, count, turns = result.stdout.decode().split()
    assert (begun, ended, count) == ("begun", "ended", turns)
    assert b"Disk quota exceeded" in result.stderr
    assert 0 < int(count) < 10_000
    *_, made, refused = result.steps.itertuples()
    assert (made.what, made.line, made.errno) == ("create", 3, 0)
    assert (refused.what, refused.line, refused.errno) == ("create", 3, errno.EDQUOT)
    assert (result.steps.what == "create").sum() == int(count) + 1


# -------------------------------------------------------------------------- what is shown of it --


def test_a_message_beside_the_output() -> None:
    """Times are no difference; what is left out, and remarks with their lines, are no output."""
    shown = [
        "real  0m2.000s",
        "(...)",
        "one  two",
        "other",
        "  --> this is",
        "      a remark",
        "[...]",
    ]
    lines = beside("real\t0m0.001s\nfirst\none two\noths\n", shown)
    assert [(line.shown, line.printed, line.same) for line in lines] == [
        ("real  0m2.000s", "real\t0m0.001s", True),
        ("one  two", "one two", True),
        ("other", "oths", False),
    ]


def test_both_kernels_beside_the_message(tmp_path: Path) -> None:
    """A message may show what was before its commit."""
    steps = (MADE + "touch /mnt/sdb/f; btrfs subvolume snapshot -r /mnt/sdb /mnt/sdb/s\n"
             "btrfs send -q --proto 2 -f /tmp/s /mnt/sdb/s && echo sent").splitlines()  # fmt: skip
    prompts = "".join(f"  $ {one}\n" for one in steps)
    (tmp_path / "message").write_text(f"A message\n\n{prompts}  sent\n\nof it.\n")
    sides = ["--before", "v5.19", "--after", "v6.18"]
    run = CliRunner().invoke(cli, ["script", str(tmp_path / "message"), *sides])
    assert "Of 1 lines that the message shows" in run.output
    assert run.output.rstrip().endswith("0 on v5.19, 1 on v6.18.")


# -------------------------------------------------------------------------------------- jobs --

JOBS = """\
for i in 1 2 3; do (n=0; while ((n < 1500)); do n=$((n + 1)); done; echo $i) & done
wait
"""


def test_jobs_in_another_order() -> None:
    orders = {bm.script(JOBS, jobs_order=seed).stdout for seed in range(8)}
    assert len(orders) > 1
    assert {b"".join(sorted(one.split())) for one in orders} == {b"123"}


def test_jobs_that_do_not_end() -> None:
    """They end with their script, or with what it may run."""
    assert bm.script("while true; do :; done &\necho done\n").stdout == b"done\n"
    with pytest.raises(UnknownError, match=r"^line 1: the script ran for too many commands"):
        bm.script("while true; do :; done & wait\n", steps=10_000)


# ----------------------------------------------------------------------------------- filters --


def test_a_filter_changes_a_file() -> None:
    """It may make another one beside it, as nobody where the script runs as root."""
    script = "mkdir /tmp/d; echo abc > /tmp/d/f; sed -i s/b/x/ /tmp/d/f; cat /tmp/d/f; ls /tmp/d\n"
    assert bm.script(script).stdout == b"axc\nf\n"


def test_a_filter_where_the_filesystems_are_large() -> None:
    """Its own memory is bounded, not that of who starts it."""
    with mmap.mmap(-1, 5 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ):
        assert bm.script("echo abc | sed s/b/x/").stdout == b"axc\n"


def test_what_is_not_installed(tmp_path: Path) -> None:
    """Without the extra, a script is one line; all else works."""
    (tmp_path / "one.sh").write_text("echo hi\n")
    program = ("import sys; sys.modules['greenlet'] = None\n"
               "from btrfs_model.cli import main; main(['script', sys.argv[1]])")  # fmt: skip
    ran = subprocess.run([sys.executable, "-c", program, str(tmp_path / "one.sh")],
                         capture_output=True, text=True)  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr == "btrfs-model: greenlet is not here: pip install 'btrfs_model[script]'\n"


# ----------------------------------------------------------------------------------- fstests --


def test_the_table_of_fstests() -> None:
    """The page counts what the list has."""
    fstests = runpy.run_path(str(corpus.PROJECT / "scripts/fstests.py"))
    with (corpus.PROJECT / "docs/fstests.csv").open(newline="") as file:
        rows = {row["test"]: row["result"] for row in csv.DictReader(file)}
    assert fstests["table"](rows) in (corpus.PROJECT / "docs/how-to/script.md").read_text()


@pytest.mark.parametrize(
    ("out", "err", "result"),
    [
        ("QA output created by 1\nx \n\nBetween readings of the clock, on m:\n", "",
         "golden output"),
        ("QA output created by 1\ny\n", "", "another output"),
        ("1 not run: no such thing\n", "", "not run: no such thing"),
        ("QA\nNOTRUN another thing\n", "", "not run: another thing"),
        ("", "btrfs-model: run-one: line 3: a b: no such; did you mean c\n",
         "not known: a b: no such"),
    ],
)  # fmt: skip
def test_what_came_of_a_test_of_fstests(out: str, err: str, result: str) -> None:
    fstests = runpy.run_path(str(corpus.PROJECT / "scripts/fstests.py"))
    assert fstests["told"](out, err, "QA output created by 1\nx\n") == result


def test_defragment_and_direct_writes_refuse_what_is_wrong() -> None:
    with bm.create("256M") as fs:
        fs.create("f")
        assert fs.write_direct("f", 100, b"") == 0
        for wrong in ({"offset": -1}, {"length": -1}, {"compress": "gzip"}):
            with pytest.raises(OSError, match="Invalid argument"):
                fs.defragment("f", **wrong)  # type: ignore[arg-type]


_LEFT_OUT = {"sleep", "not_modelled", "power_failure", "power_cut"}


@pytest.mark.parametrize("words", ["", "nope", "'' x /mnt/sdb/f /mnt/sdb"])
def test_a_program_with_odd_words_says_so_or_is_refused(words: str) -> None:
    names = [name for name in programs() if name not in _LEFT_OUT]
    names += [f"btrfs {name}" for name in _COMMANDS]
    for name in names:
        with suppress(BtrfsModelError):
            bm.script(f"{MADE}echo x > /mnt/sdb/f\n{name} {words} < /dev/null\n", steps=1_000)


def test_a_label_and_a_default_subvolume_are_checked() -> None:
    with bm.create("256M") as fs:
        with pytest.raises(ValueError, match="a label of 256 bytes"):
            fs.set_label("x" * 256)
        fs.set_label("é")
        assert fs.image.superblock.label == "é"
        with pytest.raises(FileNotFoundError):
            fs.set_default_subvolume(256)
        made = fs.create_subvolume("s")
        fs.set_default_subvolume(made)
        assert fs.default_subvolume() == made
        with pytest.raises(PermissionError):
            fs.delete_subvolume("s")
        fs.set_default_subvolume(0)
        assert fs.default_subvolume() == 5
        fs.delete_subvolume("s")
