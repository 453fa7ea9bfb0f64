"""What ``import millrace`` costs: seen from a fresh interpreter."""

import json
import subprocess
import sys

LATE = [
    "PIL",
    "cloudpickle",
    "jax",
    "obstore",
    "pandas",
    "ray",
    "rich",
    "sklearn",
    "tensorflow",
    "torch",
    "torchdata",
]


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_optional_and_heavy_libraries_come_late():
    loaded = json.loads(fresh("import json, sys, millrace; print(json.dumps(sorted(sys.modules)))"))
    assert "millrace" in loaded
    assert sorted(set(LATE) & set(loaded)) == []


def test_describing_a_pipeline_loads_none_of_them_either():
    code = (
        "import json, sys, millrace as mr\n"
        "mr.Dataset.range(10).map(str).shuffle(10).batch(2)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    assert sorted(set(LATE) & set(json.loads(fresh(code)))) == []


def test_the_package_alone_is_next_to_nothing_so_that_processes_of_a_service_start_at_once():
    loaded = json.loads(fresh("import json, sys, millrace; print(json.dumps(sorted(sys.modules)))"))
    assert {"numpy", "asyncio", "grpc", "pyarrow"}.isdisjoint(loaded)


def test_all_public_names_are_there():
    assert fresh("import millrace; print(all(getattr(millrace, name) is not None for name in dir(millrace)))") == (
        "True\n"
    )


def test_version_is_the_packages():
    assert fresh("import importlib.metadata as m, millrace; print(m.version('millrace') == millrace.__version__)") == (
        "True\n"
    )


def test_grpc_that_is_imported_later_supports_forks():
    code = """
import os
os.environ.pop("GRPC_ENABLE_FORK_SUPPORT", None)
import millrace
from grpc._cython import cygrpc
print(cygrpc.is_fork_support_enabled())
"""
    assert fresh(code) == "True\n"
