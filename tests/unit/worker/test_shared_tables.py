"""A worker takes the tables of another job's sources, if they are there, and else lists its own."""

import numpy as np
import pytest

import millrace as mr
from millrace.errors import ServiceError
from millrace.functions import bundles
from millrace.graph.notation import graph_of
from millrace.graph.serialize import pack
from millrace.planning.split_table import pack_tables
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import OpenJob
from millrace.worker.job_pipeline import JobPipeline


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(bytes(number))
    return tmp_path


def job_of(dataset, blobs):
    """A worker's pipeline of a dataset, which fetches what is among the blobs."""
    graph = graph_of(dataset)
    assert graph is not None
    structure, slots = pack(graph)
    blobs["bundle"] = bundles.pack([slot.value for slot in slots], [slot.name for slot in slots])

    def fetch(digest):
        if digest not in blobs:
            raise ServiceError(f"the dispatcher has no blob {digest}")
        return blobs[digest]

    return JobPipeline(OpenJob("job", JobSpec("job", structure, "bundle"), 1), fetch, 1, np.empty)


def files(folder):
    return mr.Dataset.from_files(f"{folder}/*.bin")


def test_tables_are_taken_by_the_order_of_sources_whatever_their_numbers_are(folder):
    blobs: dict[str, bytes] = {}
    first = job_of(mr.Dataset.zip(files(folder), files(folder).skip(1)), blobs)
    listed = first.list_sources()
    blobs["tables"] = pack_tables(listed.tables)
    (folder / "3.bin").write_bytes(b"")
    second = job_of(mr.Dataset.zip(files(folder).skip(1).shuffle(2), files(folder)).batch(2), blobs)
    found = second.list_sources("tables")
    assert found.tables.keys() != listed.tables.keys()
    assert [table.count for _, table in sorted(found.tables.items())] == [3, 3]
    assert len(found.prints) == 2


@pytest.mark.parametrize("digest", ["", "gone"])
def test_a_job_lists_its_sources_if_there_are_no_tables(folder, digest):
    assert [table.count for table in job_of(files(folder), {}).list_sources(digest).tables.values()] == [3]


def test_bytes_that_are_no_tables_are_as_if_there_were_none(folder):
    found = job_of(files(folder), {"broken": b"no tables"}).list_sources("broken")
    assert [table.count for table in found.tables.values()] == [3]
