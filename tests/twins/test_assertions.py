# SPDX-License-Identifier: GPL-2.0-only
"""What C asserts of its own state: in each function that changes a tree, and not in vain."""

import re
import shutil
import subprocess
from pathlib import Path

import corpus
import pytest
from test_native import NATIVE, in_place, make

pytestmark = pytest.mark.skipif(
    not NATIVE.is_dir(), reason="the C is not at hand: the package is installed"
)

CHANGES = re.compile(
    r"\b(header_of|item_of|ptr_of|leaf_of|payload|payload_here|bm_writer_writable)\("
)
"""How a function gets at the bytes of a block that it is about to change."""
FUNCTION = re.compile(
    r"^[a-z][^\n;={}]*?(\w+)\s*\([^;{}]*\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)


def functions_that_change_a_tree() -> dict[str, str]:
    """Return by file and name the bodies of functions that write to tree blocks."""
    return {
        f"{file.relative_to(NATIVE)}: {name}()": body
        for folder in ("writer", "bulk")
        for file in sorted((NATIVE / folder).rglob("*.c"))
        for name, body in FUNCTION.findall(file.read_text())
        # what only says where a block is changes nothing yet
        if CHANGES.search(body) and not body.lstrip().startswith("return ")
    }


@pytest.mark.claim("Each C function that changes a tree says what must hold of it (`BM_ASSERT`).")
def test_each_function_that_changes_a_tree_has_an_assertion() -> None:
    found = functions_that_change_a_tree()
    assert len(found) > 50
    assert [where for where, body in found.items() if "BM_ASSERT(" not in body] == []


PLANTED = {
    "space of a leaf": (
        "writer/btree/leaf.c",
        "item_of(leaf, slot)->size += size;",
        "item_of(leaf, slot)->size += size + 1;",
        "writer",
        "bm_leaf_is_sound",
    ),
    "order of keys": (
        "writer/btree/search.c",
        "path->slot[0] = bm_bin_search(path->node[0], key, &found);",
        "path->slot[0] = bm_bin_search(path->node[0], key, &found);\n"
        "\tpath->slot[0] += !found && path->slot[0] < block_header(path->node[0])->nritems;",
        "writer",
        "bm_leaf_is_sound",
    ),
    "count of dirty blocks": (
        "writer/writer.c",
        "writer->dirty_blocks++;",
        "",
        "writer",
        "dirty_blocks",
    ),
    "count of references": (
        "writer/space/refs.c",
        "head->ref_mod += by;",
        "head->ref_mod += by > 0;",
        "space",
        "ref_mod",
    ),
    "a list": (
        "writer/space/refs.c",
        "ref->next->prev = ref->prev;",
        "ref->next->prev = NULL;",
        "space",
        "list->last",
    ),
}


@pytest.mark.claim(
    "A fault that is planted in C (space of a leaf, order of keys, dirty blocks, references, lists)"
    " ends its tests at an assertion."
)
@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_fault_ends_at_an_assertion(what: str, tmp_path: Path) -> None:
    file, sound, faulty, test, names = PLANTED[what]
    program = f"build/plain/test_{test}"
    make(program)
    # all is there, and no newer than what was made of it
    shutil.copytree(
        NATIVE, tmp_path / "native", ignore=shutil.ignore_patterns("sanitized", "fuzzed")
    )
    text = (tmp_path / "native" / file).read_text()
    assert text.count(sound) == 1
    (tmp_path / "native" / file).write_text(text.replace(sound, faulty))
    subprocess.run(["make", "-s", "-C", tmp_path / "native", program], check=True)
    done = subprocess.run(
        [*in_place(), tmp_path / "native" / program], text=True, capture_output=True, check=False
    )
    assert done.returncode != 0
    assert re.search(rf"assertion failed: .*{re.escape(names)}", done.stderr), done.stderr[-2000:]


@pytest.mark.claim("The compiled module has no assertions in it; they cost a user nothing.")
def test_the_module_has_none() -> None:
    modules = list((corpus.PROJECT / "btrfs_model" / "native").glob("_native*.so"))
    if not modules:
        pytest.skip("the module is not built in place")
    assert all(b"assertion failed" not in module.read_bytes() for module in modules)
