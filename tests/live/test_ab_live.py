# SPDX-License-Identifier: GPL-2.0-only
"""``btrfs-model ab`` on the tree of a kernel from which one of the five commits is taken back."""

import difflib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import corpus
import judges
import pytest
from click.testing import CliRunner
from traces import last_traces

from btrfs_model.behaviour import preset_of
from btrfs_model.cli import cli
from btrfs_model.cost.machine import load as load_machine
from btrfs_model.experiments.ab.script import in_the_model, measured, script_of
from btrfs_model.experiments.commits import load as load_message
from btrfs_model.kernels.uml import Uml

TREE = Path(os.environ.get("BTRFS_MODEL_KERNEL_TREE", "/usr/src/linux-source-6.1"))
FILE = "fs/btrfs/send.c"
SCRIPT = """\
mkfs.btrfs -q -f $DEV && mount $DEV $MNT && cd $MNT || exit 1
for i in 1 2 3 4 5; do head -c 5000 /dev/zero > file_$i; done
btrfs -q subvolume snapshot -r . snap
cd / && btrfs send -q $MNT/snap | wc -c | sed 's/$/ bytes were sent/'
"""


def patch_of(tree: Path) -> str:
    """Make the patch of the commit that spares truncates: what the tree has, and what it had."""
    text = (tree / FILE).read_text()
    before = re.sub(r"\n\t\tif \([^;{}]*\)\n\t\t\tneed_truncate = (0|false);", "", text)
    assert text.count("need_truncate = ") - before.count("need_truncate = ") == 2
    lines = [one.splitlines(keepends=True) for one in (before, text)]
    title = load_message("send-truncate").title
    diff = difflib.unified_diff(*lines, f"a/{FILE}", f"b/{FILE}")
    return f"From: A <a@b>\nSubject: [PATCH] {title}\n\n{''.join(diff)}"


TERMINATED = """\
import sys
from pathlib import Path
import btrfs_model.experiments.ab.compare as ab
place = Path(sys.argv.pop(1))
ab.build_both = lambda tree, change, shelf, step: (place, place)
from btrfs_model.cli import main
main()
"""
"""Kernels that are built already."""


@judges.MARKS["uml"]
def test_a_script_ends_with_who_runs_it(tmp_path: Path) -> None:
    """Its guest too: nothing is left of one that is asked to end."""
    (tmp_path / "timed").mkdir()
    (tmp_path / "timed/linux").symlink_to("/usr/bin/linux.uml")
    tree, seen = tmp_path / "tree", tmp_path / "seen"
    temporary = tmp_path / ("longer-than-the-name-of-a-socket-may-be" * 3)
    (tree / "fs/btrfs").mkdir(parents=True)
    temporary.mkdir()
    patch, script = tmp_path / "patch", tmp_path / "measure.sh"
    patch.write_text("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")
    script.write_text(f"mkfs.btrfs -q -K $DEV; mount $DEV $MNT; echo 1 > {seen}; sleep 1000\n")
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINATED, str(tmp_path), "ab", str(tree), str(patch), "--script",
         str(script)],
        env={**os.environ, "TMPDIR": str(temporary)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not seen.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.terminate()
    said = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM, said
    assert not last_traces(temporary)


NAMED = """\
#!/bin/bash
DEV=/dev/sdj
mkfs.btrfs -f -K $DEV >/dev/null
mount $DEV /mnt/sdj
mkdir /mnt/sdj/d
for ((i = 0; i < 50; i++)); do echo -n > /mnt/sdj/d/f$i; done
btrfs subvolume snapshot -r /mnt/sdj /mnt/sdj/snap >/dev/null
echo "sent: $(btrfs send -q /mnt/sdj/snap | wc -c)"
"""
"""It does not unmount: its mounts end with it. To discard 16 GiB takes a guest ten seconds."""


@judges.MARKS["uml"]
def test_a_script_has_the_devices_that_it_names(tmp_path: Path) -> None:
    """In a kernel, where nothing of this machine changes, and in the model: the same size."""
    file = tmp_path / "measure.sh"
    file.write_text(NAMED)
    script = script_of(file, tmp_path)
    before = [sorted(Path(folder).iterdir()) for folder in ("/dev", "/mnt")]
    with Uml(Path("/usr/bin/linux.uml")) as kernel:
        kernel.start()
        release = preset_of(kernel.release)
        model = in_the_model(script, dict.fromkeys(("before", "after"), release),
                             load_machine("uml-6.1"), lambda _: None)  # fmt: skip
        # more runs than one: each has other devices under the same names
        rows = [*measured(script, {"before": kernel, "after": kernel}, 2, lambda _: None, model)]
    sent = rows[-1]
    assert sent.what == "sent: #"
    assert sent.modelled == (sent.before.value, sent.after.value)
    assert [sorted(Path(folder).iterdir()) for folder in ("/dev", "/mnt")] == before


@pytest.mark.skipif(not corpus.LONG, reason="takes ten minutes (BTRFS_MODEL_TESTS=long)")
@pytest.mark.skipif(
    not (TREE / FILE).is_file(),
    reason=f"no tree of a kernel in {TREE} (Debian: package linux-source-6.1, unpacked there or "
    "where BTRFS_MODEL_KERNEL_TREE says)",
)
@pytest.mark.claim(
    "`ab` on Linux 6.1 without one of the five commits: streams and counts before and after it are "
    "the model's."
)
def test_a_commit_that_was_taken_back(tmp_path: Path) -> None:
    patch, script, output = (tmp_path / name for name in ("patch", "measure.sh", "page.html"))
    patch.write_text(patch_of(TREE))
    script.write_text(SCRIPT)
    arguments = [str(TREE), str(patch), "--workload", "send-truncate", "--script", str(script),
                 "--runs", "2", "--scale", "0.01", "--json", "-o", str(output)]  # fmt: skip
    ran = CliRunner().invoke(cli, ["ab", *arguments], catch_exceptions=False)
    told = [*map(json.loads, ran.stdout.splitlines())]
    rows = {row["what"]: row for row in reversed(told)}
    known = [row for row in rows.values() if row["modelled"] is not None]
    for row in known:
        assert [row["before"]["value"], row["after"]["value"]] == row["modelled"], row
    truncates = rows["command truncate"]
    assert truncates["modelled"] == [200, 0]
    assert {"stream size", "commands", "send_cmd", "get_cur_path"} <= {row["what"] for row in known}
    sent = rows["# bytes were sent"]
    assert sent["before"]["value"] > sent["after"]["value"]
    counted = [
        row for row in rows.values() if row["workload"] == "measure.sh" and row["unit"] == "calls"
    ]
    assert {"send_cmd", "send_truncate"} & {row["what"] for row in counted}
    assert rows["receive time"]["reported"] == "1.25x, 20,000 files"
    assert rows["receive time"]["predicted"]["value"] > 1
    assert "1.25x, 20,000 files" in output.read_text()
