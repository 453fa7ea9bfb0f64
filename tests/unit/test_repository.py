"""Rules about the files of this repository."""

import ast
import collections
import re
from pathlib import Path

import pytest

from millrace.graph.nodes import OP_NAMES

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "chaos").rglob("*.py")])
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEXTS = [
    path
    for pattern in (
        "*.md",
        "*.toml",
        "*.txt",
        "Makefile",
        ".ci/*",
        "docs/**/*.md",
        "src/**/*.py",
        "benchmarks/**/*.py",
        "chaos/**/*.py",
        "tests/**/*.py",
    )
    for path in ROOT.glob(pattern)
]


def places(pattern: str, paths: list[Path]) -> list[str]:
    """``file:line: text`` wherever ``pattern`` is found."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if re.search(pattern, line)
    ]


def test_the_rules_look_at_something():
    assert len(SOURCES) > 20
    assert len(TESTS) > 5
    assert len(TEXTS) > len(SOURCES) + len(TESTS)


def test_no_source_file_is_long():
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in sizes.items() if lines > 500} == {}


def test_nothing_sleeps():
    confinement = [ROOT / "tests/unit/conftest.py", ROOT / "tests/unit/test_confinement.py", Path(__file__)]
    pattern = r"\btime\.sleep\b|from time import .*\bsleep\b"
    assert places(pattern, [path for path in SOURCES + TESTS if path not in confinement]) == []


def test_no_unfinished_business():
    assert places(r"\b(TODO|FIXME" + r"|XXX)\b", [path for path in TEXTS if path != Path(__file__)]) == []


def test_modules_have_telling_names():
    vague = {"util", "utils", "common", "helper", "helpers", "misc"}
    assert [str(path) for path in SOURCES if vague & {path.stem, path.parent.name}] == []
    assert [str(path) for path in SOURCES if re.search(r"_v\d+$", path.stem)] == []


def test_every_operator_is_documented():
    headings = re.findall(r"^### (\w+)$", (ROOT / "docs/operators.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(OP_NAMES.values())


def test_constraints_pin_versions_and_nothing_else():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert "torch==2.13.0" in lines


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))])
def test_links_lead_somewhere(path: Path):
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)", path.read_text())
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_files_that_docs_name_are_there():
    """A path is given from the repository's root, from ``src/millrace``, or from a folder that the page is about."""
    there = [f"/{path.relative_to(ROOT)}" for path in [*SOURCES, *TESTS, *(ROOT / "examples").rglob("*.py")]]
    pages = sorted((ROOT / "docs").rglob("*.md"))
    named = [(page.name, name) for page in pages for name in re.findall(r"`((?:\w+/)+\w+\.py)`", page.read_text())]
    assert len(named) > 100
    assert [each for each in named if not any(path.endswith(f"/{each[1]}") for path in there)] == []


SUBJECTLESS = {"What", "Who", "That", "Those", "These", "It", "They", "All of it", "Of", "So", "As"}


def test_docstrings_name_their_subject():
    """A first line is an imperative or a noun phrase; lint (D401, D404) looks at functions alone."""
    pattern = re.compile(rf"({'|'.join(sorted(SUBJECTLESS))})\b")
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if pattern.match(first):
                    found.append(f"{path.relative_to(ROOT)}: {first}")
    assert found == []


def test_names_of_modules_and_classes_are_unique():
    modules: dict[str, int] = collections.Counter()
    classes: dict[str, int] = collections.Counter()
    for path in (ROOT / "src").rglob("*.py"):
        if not path.stem.startswith("__"):
            modules[path.stem] += 1
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
    assert {name for name, count in modules.items() if count > 1} == set()
    assert {name for name, count in classes.items() if count > 1} == set()
