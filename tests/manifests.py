"""The folder ``deploy/kubernetes``, as the tests of it and the fake of an API server read it."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "deploy" / "kubernetes"


def manifests() -> list[dict[str, Any]]:
    """All objects in it, but what only kustomize reads."""
    files = [path for path in sorted(FOLDER.glob("*.yaml")) if path.name != "kustomization.yaml"]
    return [each for path in files for each in yaml.safe_load_all(path.read_text())]


def manifest(kind: str, name: str) -> dict[str, Any]:
    """The one of this kind and name."""
    (found,) = [each for each in manifests() if each["kind"] == kind and each["metadata"]["name"] == name]
    return found
