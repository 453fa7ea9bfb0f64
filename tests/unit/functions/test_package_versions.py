from __future__ import annotations

import importlib.metadata
import sys

import pytest

from millrace.functions.package_versions import release
from millrace.version import __version__


def version(name):
    return f"{name} {importlib.metadata.version(name)}"


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("numpy.linalg", version("numpy")),
        ("PIL.Image", version("pillow")),  # not of the package's name
        ("google.protobuf", version("protobuf")),  # a folder that several share
        ("json", f"python {sys.version_info.major}.{sys.version_info.minor}"),
        ("builtins", f"python {sys.version_info.major}.{sys.version_info.minor}"),
        ("millrace.dataset", f"millrace {__version__}"),
        ("__main__", None),
        (__name__, None),
        ("no_such_module_anywhere", None),
    ],
)
def test_releases(module, expected):
    assert release(module) == expected
