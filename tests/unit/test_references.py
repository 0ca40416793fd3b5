# SPDX-License-Identifier: GPL-2.0-only
"""Cross references in docstrings lead somewhere."""

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import btrfs_model as bm

PACKAGE = Path(bm.__file__).parent
ROLE = re.compile(r":(?:func|class|meth|data|mod|attr|exc):`([^`]+)`")
TARGET = re.compile(r"(?s).*<([^>]+)>$")


def module_of(file: Path) -> str:
    name = ".".join(("btrfs_model", *file.relative_to(PACKAGE).with_suffix("").parts))
    return name.removesuffix(".__init__")


def bound(body: list[ast.stmt]) -> Iterator[tuple[str, list[ast.stmt]]]:
    """Yield the names that statements bind, with what is inside those that are classes."""
    for node in body:
        match node:
            case ast.ClassDef():
                yield node.name, node.body
                for one in ast.walk(node):  # what methods set of themselves
                    if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
                        yield f"{node.name}.{one.attr}", []
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, []
            case ast.ImportFrom() | ast.Import():
                for alias in node.names:
                    yield alias.asname or alias.name, []
            case ast.Assign(targets=targets):
                for target in targets:
                    for one in ast.walk(target):
                        if isinstance(one, ast.Name):
                            yield one.id, []
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, []
            case ast.If() | ast.Try():
                yield from bound([*node.body, *node.orelse])


def names_in(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for name, inside in bound(body):
        yield f"{prefix}.{name}"
        yield from names_in(inside, f"{prefix}.{name}")


@cache
def modules() -> dict[str, ast.Module]:
    return {module_of(file): ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}


@cache
def known() -> set[str]:
    return {*modules(), *(name for module, tree in modules().items()
                          for name in names_in(tree.body, module))}  # fmt: skip


@cache
def ends() -> set[str]:
    return {".".join(name.split(".")[-many:]) for name in known() for many in (1, 2, 3, 4)}


@cache
def inside(module: str) -> list[str]:
    return [name for name in known() if name.startswith(f"{module}.")]


@cache
def is_of_python(target: str) -> bool:
    """Whether it is something of Python's, or of a library."""
    first, *_ = target.split(".")
    if hasattr(builtins, first):
        return True
    try:
        found = import_module(first)
        for part in target.split(".")[1:]:
            found = getattr(found, part, None) or import_module(f"{found.__name__}.{part}")
    except ImportError:
        return False
    return True


def leads_somewhere(target: str, module: str) -> bool:
    if target.startswith("."):
        return target[1:] in ends()
    if target.startswith("btrfs_model"):
        return target in known()
    # of a module, or of one of its classes
    if any(name.endswith(f".{target}") for name in inside(module)):
        return True
    first, _, rest = target.partition(".")
    is_imported = bool(rest) and f"{module}.{first}" in known()
    return (is_imported and target in ends()) or is_of_python(target)


def references(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            text = node.value.value
            for match in ROLE.finditer(text if isinstance(text, str) else ""):
                target = TARGET.sub(r"\1", match[1]).lstrip("~")
                yield node.lineno + text[: match.start()].count("\n"), target


def test_references_lead_somewhere() -> None:
    nowhere = [
        f"{module}:{line}: {target}"
        for module, tree in modules().items()
        for line, target in references(tree)
        if not leads_somewhere(target, module)
    ]
    assert nowhere == []


@pytest.mark.parametrize(
    ("target", "good"),
    [
        ("btrfs_model.volume.tree.Tree.scan", True), ("btrfs_model.volume.tree.Tree.skan", False),
        (".Tree.scan", True), (".Tree.skan", False), ("time.time", True), ("time.tim", False),
        ("Tree", True), ("MetadataSpace", False), ("btrfs_model.volume.\ntree", False),
    ],
)  # fmt: skip
def test_what_leads_nowhere_is_seen(target: str, good: bool) -> None:
    assert leads_somewhere(target, "btrfs_model.volume.tree") == good
