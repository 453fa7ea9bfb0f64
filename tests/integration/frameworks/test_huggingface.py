"""Hugging Face's own datasets as a source, on a service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import millrace as mr

datasets = pytest.importorskip("datasets")
COUNT = 60


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    datasets.disable_progress_bars()


def table() -> Any:
    return datasets.Dataset.from_dict(
        {"text": [f"row {n}" for n in range(COUNT)], "pair": [[n, -n] for n in range(COUNT)]}
    )


def test_datasets_of_all_kinds_reach_a_service(tmp_path: Path) -> None:
    table().save_to_disk(tmp_path / "saved")
    length = pa.table({"most": [5]})
    kinds = {
        "in memory": table(),
        "as arrays": table().with_format("numpy"),
        "chosen, in another order": table().shuffle(seed=3).select(range(20)),
        "with a function": table().with_transform(lambda rows: {"length": [len(text) for text in rows["text"]]}),
        "mapped from files": datasets.load_from_disk(str(tmp_path / "saved")),
    }
    pipelines = {name: mr.Dataset.from_map_style(kind) for name, kind in kinds.items()}
    pipelines["and a table in a function"] = pipelines["in memory"].map(
        lambda row: row["text"][: length["most"][0].as_py()]
    )
    with mr.LocalService(max_workers=1) as service:
        for name, pipeline in pipelines.items():
            with pipeline.distribute(service.address, job_name=name, deterministic=True) as served:
                np.testing.assert_equal(list(served), list(pipeline), err_msg=name)
