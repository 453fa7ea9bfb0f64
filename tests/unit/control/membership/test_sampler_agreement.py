"""Workers whose samplers draw otherwise: the first word counts, and one that contradicts it ends the job."""

import pytest
from tests.unit.control.control_driver import FakeConsumer, FakePlan, Service

from millrace import Dataset
from millrace.control import inputs as inp
from millrace.graph.serialize import pack
from millrace.protocol import messages as msg
from millrace.protocol.sampler_messages import SamplersDrew


class Mine:
    """Sampler of one's own."""

    def positions(self, size, seed, epoch):
        raise AssertionError("a dispatcher draws nothing")


def begun() -> tuple[Service, FakeConsumer]:
    service = Service(FakePlan(8))
    for name in ("w0", "w1"):
        service.add_worker(name)
    structure, _ = pack(Dataset.range(8).sample(Mine()).__pipeline__().graph)
    peer = service.join("train", "train", structure=structure)
    service.work()
    return service, peer


def say(service: Service, worker: str, drawn: dict[str, str], epoch: int = 0, job: str = "train") -> None:
    service.say(inp.WorkerSaid(worker, SamplersDrew(job, epoch, drawn)))


def test_who_draws_the_same_is_heard_and_nothing_happens():
    service, peer = begun()
    for worker in ("w0", "w1", "w1"):
        say(service, worker, {"a": "1", "b": "2"})
    say(service, "w0", {"c": "3"})
    assert service.state.jobs["train"].epochs[0].drawn == {"a": "1", "b": "2", "c": "3"}
    assert peer.failure is None


@pytest.mark.parametrize("back", [False, True])
def test_who_draws_otherwise_ends_the_job(back):
    service, _ = begun()
    say(service, "w0", {"a": "1"})
    if back:  # a dispatcher that was started again knows what was said
        service.restart()
    say(service, "w1", {"b": "1", "a": "2"})
    failure = service.state.jobs["train"].failure
    assert isinstance(failure, msg.Failure)
    assert failure.kind == "PipelineError"
    assert "two workers drew different elements for epoch 0 with sample(Mine)" in failure.message
    say(service, "w0", {"a": "3"})
    assert service.state.jobs["train"].failure == failure


def test_what_is_over_or_nobodys_counts_for_nothing():
    service, _ = begun()
    say(service, "w0", {"a": "1"}, epoch=7)
    say(service, "w0", {"a": "1"}, job="another")
    service.state.workers["w1"].open.clear()
    say(service, "w1", {"a": "1"})
    assert not service.state.jobs["train"].epochs[0].drawn
