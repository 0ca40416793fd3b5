# SPDX-License-Identifier: GPL-2.0-only
"""The shell beside bash: the same script in both, output and exit status."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import btrfs_model as bm
from btrfs_model.scripts.host import why_not
from btrfs_model.shell.parse import ShellSyntaxError

BASH = shutil.which("bash")
pytestmark = [
    pytest.mark.skipif(BASH is None, reason="bash is not here"),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

PREAMBLE = """\
a=foo; b="x y"; c=12; i=1; guard=0; arr=(foo "b r" baz); declare -A map=([k]=v [j]="w w")
f() { local a=loc; echo "f:$1:$#:$a"; return 4; }
g() { echo g; false; }
set -- one "t wo" 3
"""


def both(text: str, tmp_path: Path) -> tuple[tuple[bytes, int], tuple[bytes, int]]:
    """Run a script in bash, in an empty folder, and in the shell of the model."""
    file = tmp_path / "script"
    file.write_text(text)
    folder = tmp_path / "work"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    ran = subprocess.run(["bash", str(file)], cwd=folder, stdin=subprocess.DEVNULL,
                         capture_output=True, timeout=60,
                         env={"HOME": "/root", "PATH": "/usr/bin:/bin", "LC_ALL": "C"})  # fmt: skip
    try:
        ours = bm.script(f"mkdir /w; cd /w\n{text}")
    except ShellSyntaxError:
        # refused before anything runs; bash runs what stands in the lines before
        return (ran.stdout, ran.returncode), (ran.stdout, 2)
    return (ran.stdout, ran.returncode), (ours.stdout, ours.status)


@pytest.mark.claim(
    "A script of bash prints what bash prints, and ends with its status.", judge="twins"
)
@pytest.mark.parametrize(
    "text",
    [
        "yes | head -n 2; echo ${PIPESTATUS[*]}",
        "yes a b | sed 2q; echo ${PIPESTATUS[*]}",
        "(echo first; yes; echo last) | head -n 3; echo $?",
        "x=$(yes | head -n 100000 | tail -n 1); echo $x",
        "set -o pipefail; cat /dev/zero | head -c 3 | od -c; echo $?",
        "tr -dc a-z </dev/urandom | head -c 8 | wc -c; echo ${PIPESTATUS[*]}",
        "tr -dc 'a-z\\n' </dev/urandom | fold -w 6 | sed 3q | wc -l",
        "od /dev/urandom | dd iflag=fullblock bs=4k count=2 2>/dev/null | wc -c",
        "grep -m1 -c a /dev/urandom; sed -n '2q;1p' /dev/urandom | wc -l",
        "yes | while read a; do echo $a; break; done; echo ${PIPESTATUS[*]}",
        "tr y n | head -n 1 < <(yes | head -n 3); d=$(mktemp -du); mkdir $d && echo made",
        "yes | grep -q y && echo found; yes | nosuch 2>/dev/null; echo ${PIPESTATUS[*]}",
    ],
)
def test_what_has_no_end_is_read_as_far_as_it_is_asked_for(tmp_path: Path, text: str) -> None:
    theirs, ours = both(text + "\n", tmp_path)
    assert ours == theirs


FILES = """\
printf 'b\\n' > $PWD/pat; printf '{print "<" $1 ">"}\\n' > p.awk; printf 's/a/X/\\n' > p.sed
"""


@pytest.mark.parametrize(
    "text",
    [
        "printf 'abc\\nxyz\\n' | grep -f pat; printf 'abc\\n' | grep -vf pat; echo $?",
        "printf 'abc xyz\\n' | awk -f p.awk; printf 'abc\\n' | sed -nf p.sed -e p",
        "printf 'abc\\n' | sort - pat; printf '1\\n2\\n' | paste - pat",
        "echo x $PWD/pat y | sed s,$PWD/pat,Z,; echo $PWD/pat | grep -c $PWD/pat",
        "grep -c b $PWD/pat; sed -n p $PWD/pat; awk '{print FNR}' v=1 $PWD/pat",
        "echo abc | awk -v f=$PWD/pat '{ print $1, f ~ /.pat$/ }'",
        "echo abc | tr b Z; echo a | grep -e a -A 1; echo a:b | awk -F: '{print $2}'",
        "export X=5; awk 'BEGIN { print ENVIRON[\"X\"] }'; X=7 printenv X; Y=1; printenv Y",
        "sed -i s/b/c/ pat; cat pat; sed -i.bak s/c/d/ $PWD/pat; cat pat pat.bak",
        "sed -Ei 's/(b)/<\\1>/' pat; cat pat; sed --in-place=~ s/b/d/ pat; cat pat pat~; ls",
        "echo a | grep -e a pat; echo $?; echo a | grep --regexp a; cat pat | grep --file pat",
        "echo /dev/zero | grep /dev/zero; yes b | grep -m 1 -f pat; yes $PWD/pat | sed -n '2{p;q}'",
    ],
)
def test_what_is_a_file_and_what_a_program(tmp_path: Path, text: str) -> None:
    theirs, ours = both(FILES + text + "\n", tmp_path)
    assert (ours[0].replace(b"/w/", b"/"), ours[1]) == (
        theirs[0].replace(bytes(tmp_path / "work") + b"/", b"/"), theirs[1]
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", json.loads((Path(__file__).parents[1] / "data/shell.json").read_text())
)
def test_as_bash_has_it(tmp_path: Path, text: str) -> None:
    theirs, ours = both(PREAMBLE + text + "\n", tmp_path)
    assert ours == theirs


WORDS = ("foo", "x1", "$a", '"$b"', "$b", "${c}", "'q q'", "${u:-d}", "${a#f}", "${b/ /_}", "${#a}",
         "$((c + i))", "$(echo s)", '"$@"', "${arr[1]}", '"${arr[@]}"', "{p,q}", "a\\ b", "$*", "",
         "${a^}", "${b%y}", "$'\\t'", "$?", "~", "*")  # fmt: skip
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("".join)
TESTS = ("true", "false", '[ "$a" = foo ]', "[[ $b == x* ]]", "(( i++ < 3 ))", "[ -n \"$u\" ]",
         "[[ $c -gt 5 && $a < b ]]", "f x > /dev/null", "! g > /dev/null")  # fmt: skip


def statements(depth: int) -> st.SearchStrategy[str]:
    simple = st.one_of(
        st.lists(words, min_size=1, max_size=3).map(lambda all_: "echo " + " ".join(all_)),
        words.map(lambda word: f"printf '<%s>' {word}"),
        st.tuples(st.sampled_from(["a", "b", "c"]), words).map("=".join),
        st.lists(words, max_size=3).map(lambda all_: f"arr=({' '.join(all_)})"),
        words.map(lambda word: f"set -- {word} z"),
        words.map(lambda word: f"f {word}"),
        st.sampled_from([*TESTS, "shift", "unset a", "(exit 3)", 'read a b <<< "$b"', "i=0"]),
    )
    if not depth:
        return simple
    inner = statements(depth - 1)
    tests = st.sampled_from(TESTS)
    return st.one_of(
        simple,
        st.tuples(tests, inner, inner).map(lambda s: f"if {s[0]}; then {s[1]}; else {s[2]}; fi"),
        st.tuples(words, inner).map(lambda s: f'for v in {s[0]}; do {s[1]}; echo "[$v]"; done'),
        st.tuples(inner, inner).map(
            lambda s: f"for ((i=0;i<2;i++)); do {s[0]}; {s[1]}; (( ++guard > 20 )) && break; done"
        ),
        st.tuples(words, inner).map(lambda s: f"case {s[0]} in f*) {s[1]};; *) echo other;; esac"),
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(" ".join),
        st.tuples(inner, inner).map(lambda s: f"{{ {s[0]}; {s[1]}; }} | cat"),
        inner.map(lambda s: f"( {s} )"),
        inner.map(lambda s: f'x=$( {s} ); echo "$x"'),
        inner.map(lambda s: f"{{ {s}; }} > F; cat F"),
    )


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    flags=st.sampled_from(["", "set -e\n", "set -u\n", "set -o pipefail\n", "IFS=:\n"]),
    lines=st.lists(statements(2), min_size=1, max_size=4),
)
def test_random_scripts(
    tmp_path_factory: pytest.TempPathFactory, flags: str, lines: list[str]
) -> None:
    text = PREAMBLE + flags + "\necho $?\n".join(lines) + "\necho end $?\n"
    theirs, ours = both(text, tmp_path_factory.mktemp("shell"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("text", "line"),
    [("if true; then\n", 1), ("echo a\necho )\n", 2), ("for x in; do\n", 1), ("echo 'x\n", 1),
     ("case a in\n", 1), ("echo $((1 +))\n", 1), ("}\n", 1)],
)  # fmt: skip
def test_what_bash_refuses(text: str, line: int) -> None:
    """A script that is none ends before anything of it runs, with its line."""
    with pytest.raises(ShellSyntaxError, match=f"^line {line}: "):
        bm.script(text)
