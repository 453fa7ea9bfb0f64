"""The folders of ``deploy``, as the tests of them and the fake of an API server read them."""

import re
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"
INSECURE = FOLDER.parent / "kubernetes-insecure" / "kustomization.yaml"
"""What makes the same without TLS of it."""


CACHE = FOLDER.parent / "kubernetes-cache"
"""What has cache servers, too."""


def manifests(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All objects in it, but what only kustomize reads."""
    files = [path for path in sorted(folder.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [each for path in files for each in yaml.safe_load_all(path.read_text())]


def manifest(kind: str, name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """The one of this kind and name."""
    (found,) = [each for each in manifests(folder) if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


def insecure(given: dict[str, Any]) -> dict[str, Any]:
    """The same without TLS: what kustomize makes of it with the patch of ``deploy/kubernetes-insecure``, in place."""
    (patch,) = yaml.safe_load(INSECURE.read_text())["patches"]
    target = patch["target"]
    assert re.fullmatch(target["kind"], given["kind"])
    assert re.fullmatch(target["name"], given["metadata"]["name"])
    for step in yaml.safe_load(patch["patch"]):
        *way, last = step["path"].split("/")[1:]
        at: Any = given
        for key in way:
            at = at[int(key)] if isinstance(at, list) else at[key]
        match step["op"]:
            case "add":
                assert last == "-"
                at.append(step["value"])
            case "test":
                assert at[last] == step["value"]
            case "remove":
                del at[int(last)]
    return given
