"""What ``import millrace`` costs: seen from a fresh interpreter."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.sources.packs.pack_index import PackedShard, PackIndex, encode_index

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


def test_reading_parquet_and_the_index_of_a_pack_loads_no_pandas(tmp_path):
    zero, nine = np.zeros(1, np.int64), np.full(1, 9, np.int64)
    index = PackIndex("p", [PackedShard("a.tar", 9)], zero.astype(np.int32), zero, nine, zero.astype(np.uint32), ["k"])
    (tmp_path / "index.parquet").write_bytes(encode_index(index))
    rows = {"id": [1, 2], "weight": [0.5, None], "name": ["a", "b"], "picture": [b"a", b"b"], "tokens": [[1, 2], [3]]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    code = f"""
import sys, millrace as mr
from millrace.sources.packs.pack_index import decode_index
index = decode_index(open({str(tmp_path / "index.parquet")!r}, "rb").read())
rows = list(mr.Dataset.from_parquet({str(tmp_path / "rows.parquet")!r}))
print(index.bytes.tolist(), index.keys, [row["tokens"].tolist() for row in rows], "pandas" in sys.modules)
"""
    assert fresh(code) == "[9] ['k'] [[1, 2], [3]] False\n"


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
