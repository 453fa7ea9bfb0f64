"""What a service computes, saved here: left as it is where nothing has changed, and gone on with in another job."""

from __future__ import annotations

import pytest

import millrace as mr
from millrace.errors import ElementError, PipelineError, UnsureError


class Breaks:
    """Function that fails at an element until a file is there; its key is all that is seen of it."""

    def __init__(self, file: str, at: int) -> None:
        self.file, self.at = file, at

    def __call__(self, number: int) -> bytes:
        import os

        if number == self.at and not os.path.exists(self.file):
            raise ValueError("not yet")
        return number.to_bytes(2, "little") * 500


def numbers(path: object) -> list[int]:
    return sorted(int.from_bytes(each[:2], "little") for each in mr.Dataset.load(str(path)))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_a_service_would_compute_again_is_left_as_it_is(service, tmp_path):
    def saved(factor: int):
        dataset = mr.Dataset.range(200).map(lambda number: bytes([factor]) * number)
        with dataset.distribute(service.address) as there:
            return there.map(len).batch(10).save(tmp_path / "saved", if_exists="refresh")

    assert saved(1).made
    kept = saved(1)
    assert not kept.made
    assert "by the same pipeline" in kept.reason
    assert ".distribute(" in kept.info.made.of.pipeline
    assert "a function of the pipeline, or what it refers to, has changed" in saved(2).reason
    with (
        mr.Dataset.range(5).distribute(service.address, job_name="of-two", num_consumers=2, consumer_index=0) as part,
        pytest.raises(UnsureError, match="what comes to one of several consumers of a job is another part"),
    ):
        part.save(tmp_path / "part", if_exists="refresh")


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_save_whose_job_failed_is_gone_on_with_in_another_job(service, tmp_path):
    function = Breaks(str(tmp_path / "mended"), 1900)
    dataset = mr.Dataset.range(2000).map(function, key="v1").with_options(buffer_bytes=1 << 20, seed=1)
    with pytest.raises((ElementError, mr.MillraceError)), dataset.distribute(service.address) as there:
        there.save(tmp_path / "saved", file_bytes=50_000)
    (tmp_path / "mended").write_text("")
    with dataset.distribute(service.address) as there:
        result = there.save(tmp_path / "saved", file_bytes=50_000)
    assert "an interrupted save had" in result.reason
    assert numbers(tmp_path / "saved") == list(range(2000))
    with pytest.raises(PipelineError, match="holds a saved dataset"):
        dataset.save(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore:set_weights came when all tasks")  # as they may have, which does not matter here
@pytest.mark.parametrize("service", [2], indirect=True)
def test_an_epoch_of_a_service_with_weights_that_were_set_is_another_one(service, tmp_path):
    parts = [mr.Dataset.range(500).repeat(), mr.Dataset.range(1000, 1500).repeat()]
    dataset = mr.Dataset.sample_from_datasets(parts, [0.9, 0.1], seed=3).take(3000)
    with dataset.distribute(service.address) as there:
        assert there.save(tmp_path / "saved", if_exists="refresh").made
        assert not there.save(tmp_path / "saved", if_exists="refresh").made
        epoch = iter(there)
        next(epoch)
        epoch.set_weights([0.1, 0.9])
        epoch.close()
        with pytest.raises(UnsureError, match="set_weights has set other weights"):
            there.save(tmp_path / "saved", if_exists="refresh")


@pytest.mark.parametrize("service", [2], indirect=True)
def test_what_operators_behind_distribute_hold_back_is_saved_though_it_has_no_states(service, tmp_path):
    with (
        mr.Dataset.range(300)
        .map(lambda number: number.to_bytes(2, "little") * 500)
        .distribute(service.address) as there
    ):
        result = there.shuffle(50).save(tmp_path / "saved", file_bytes=20_000)
    assert result.info.files > 5
    assert numbers(tmp_path / "saved") == list(range(300))


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_save_with_other_tasks_begins_anew_where_an_interrupted_one_cannot_be_gone_on_with(service, tmp_path):
    function = Breaks(str(tmp_path / "mended"), 1900)
    dataset = mr.Dataset.range(2000).map(function, key="v1").with_options(buffer_bytes=1 << 20, seed=1)
    with pytest.raises((ElementError, mr.MillraceError)), dataset.distribute(service.address, tasks=8) as there:
        there.save(tmp_path / "saved", file_bytes=50_000)
    assert list((tmp_path / "saved").glob("saving-*.json"))
    (tmp_path / "mended").write_text("")
    with dataset.distribute(service.address, tasks=16) as there:
        result = there.save(tmp_path / "saved", file_bytes=50_000)
    assert "an interrupted save could not be gone on with: the state is of an epoch of 8 tasks" in result.reason
    assert numbers(tmp_path / "saved") == list(range(2000))
    assert len(list((tmp_path / "saved").iterdir())) == result.info.files + 1


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_job_without_states_can_be_saved_after_an_epoch(service, tmp_path):
    off, often = mr.ShardingPolicy.OFF, mr.Visitation.ZERO_ONCE_OR_MORE
    with mr.Dataset.range(100).distribute(service.address, sharding=off, visitation=often) as there:
        assert len(list(there)) >= 100
        assert there.save(tmp_path / "saved").info.elements >= 100
        with pytest.raises(UnsureError, match="an epoch may lack elements, or have some of them twice"):
            there.save(tmp_path / "saved", if_exists="refresh")
