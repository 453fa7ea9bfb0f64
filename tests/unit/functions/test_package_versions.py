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


def test_a_folder_that_several_distributions_share_is_of_them_all():
    sharing = set((release("google.protobuf") or "").split(", "))
    assert version("protobuf") in sharing
    assert all(name.startswith(("google", "proto")) for name in sharing)  # how many there are is the environment's
