"""What the documents say is what happens: their examples are run as they are, and their signatures compared."""

import ast
import importlib.util
import inspect
import io
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

import millrace as mr

ROOT = Path(__file__).parents[2]
DOCUMENTS = (
    "README.md",
    "docs/caching.md",
    "docs/coming-from.md",
    "docs/digests.md",
    "docs/frameworks.md",
    "docs/recipes.md",
    "docs/resume.md",
    "docs/service.md",
    "docs/sharing.md",
    "docs/writing-functions.md",
)
BY_HAND = {"range", "zip"}
"""Their arguments are whatever Python's own take; the documents show how."""


OPERATORS = ("docs/operators.md",)


def examples(documents: tuple[str, ...] = DOCUMENTS) -> list[tuple[str, str]]:
    """(document and line, text) of each block of Python that is not called a fragment."""
    found = []
    for document in documents:
        text = (ROOT / document).read_text()
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text[: block.start()].count("\n") + 1
            found.append((f"{document}:{line}", block[1]))
    return found


def run(folder: Path, script: Path, *arguments: str) -> str:
    """What a script prints; it must end well."""
    done = subprocess.run(
        [sys.executable, script, *arguments], check=False, cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("place", "text"), examples(), ids=[place for place, _ in examples()])
def test_an_example_runs_when_it_is_copied_into_a_file(place: str, text: str, tmp_path: Path):
    if "import datasets\n" in text and importlib.util.find_spec("datasets") is None:
        pytest.skip("Hugging Face's datasets are not installed")
    script = tmp_path / "train.py"
    script.write_text(text)
    printed = run(tmp_path, script)
    if place.startswith("README.md"):
        assert printed == "9984 elements in this process, 9984 from the service\n"


@pytest.mark.parametrize(("place", "text"), examples(OPERATORS), ids=[place for place, _ in examples(OPERATORS)])
def test_an_example_of_an_operator_runs(place: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # in this process, as there are many of a few lines each
    exec(compile(text, place, "exec"), {"__name__": "__main__"})


def test_there_are_examples_everywhere():
    assert {place.split(":")[0] for place, _ in examples()} == set(DOCUMENTS)
    assert sum(place.startswith("README.md") for place, _ in examples()) == 1


def test_signatures_in_the_list_of_operators_are_the_codes():
    text = (ROOT / "docs/operators.md").read_text()
    entries = re.findall(r"^### (\w+)\n\n`(?:Dataset\.)?(\w+)\(([^`]*)\)`", text, re.MULTILINE)
    assert len(entries) > 25
    for heading, name, arguments in entries:
        assert name == heading
        if name in BY_HAND:
            continue
        parameters = list(inspect.signature(getattr(mr.Dataset, name)).parameters.values())
        shown = [_shown(parameter) for parameter in parameters if parameter.name != "self"]
        starred = any(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters)
        assert [each for each in re.split(r",\s+", arguments) if each and each != "*"] == shown, name
        assert ("*" in re.split(r",\s+", arguments)) == starred, name


def test_what_is_said_to_show_something_is_there():
    text = (ROOT / "docs/coverage.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(named) > 10
    for path, test in named:
        assert f"def {test}(" in (ROOT / path).read_text() or not test, f"{path}::{test}"


def test_messages_and_options_that_help_with_trouble_are_the_codes():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src/millrace").rglob("*.py")]
    said = "\n".join(_said(node) for tree in trees for node in ast.walk(tree))
    quoted = [quote for line in text.splitlines() for quote in re.findall(r'"([^"`]+)"', line.split(" | ")[0])]
    assert len(quoted) > 40
    parts = [part.strip() for quote in quoted for part in quote.split("...")]
    assert [part for part in parts if part not in said] == ["Bus error"]  # which is the system's
    options = {
        option for command in re.findall(r"millrace [^`]*", text) for option in re.findall(r"--[a-z-]+", command)
    }
    assert len(options) > 5
    assert options <= set(said.splitlines())


def _said(node: ast.AST) -> str:
    """The text of a string, with what is put into it left out; empty if it is none."""
    if isinstance(node, ast.JoinedStr):
        return "\0".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _shown(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    if isinstance(parameter.default, str):
        return f'{parameter.name}="{parameter.default}"'
    automatic = type(parameter.default) is int and parameter.default == mr.AUTOTUNE
    return f"{parameter.name}={'AUTOTUNE' if automatic else parameter.default}"


def test_cifar10_from_files_to_accuracy(tmp_path: Path):
    for part, count in (("train", 40), ("test", 10)):
        for number in range(count):
            folder = tmp_path / "images" / part / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (32, 32), (255 * (number % 2), number, 0)).save(folder / f"{number}.jpg")
        printed = run(
            tmp_path, ROOT / "examples/pack_cifar10.py", f"images/{part}", f"shards/{part}", "--per-shard", "15"
        )
        shards = -(-count // 15)
        assert printed == f"{count} images of 2 classes in {shards} shards, shards/{part}-*.tar\n"
    with tarfile.open(tmp_path / "shards/train-001.tar") as shard:
        assert [member.name for member in shard][:2] == ["000015.jpg", "000015.cls"]
        image = shard.extractfile("000015.jpg")
        assert image is not None
        assert Image.open(io.BytesIO(image.read())).size == (32, 32)
    printed = run(tmp_path, ROOT / "examples/cifar10.py", "shards", "--epochs", "2")
    assert re.findall(r"(\d+) images, (\d+) different", printed) == [("40", "40")] * 2
