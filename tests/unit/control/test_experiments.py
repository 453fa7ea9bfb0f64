"""Which experiment of a job runs, and from when on measures are of its regime."""

from tests.unit.control.caching.test_cache_mode import Driven, point

from millrace.control import inputs as inp
from millrace.control.experiments import cache_regime, experiment_of, makers
from millrace.control.journal.cache_events import ModeChosen
from millrace.control.journal.replay import apply
from millrace.control.state.regime import Regime
from millrace.control.state.scaling_state import Scaling
from millrace.policies.scaling.autoscale import Scale
from millrace.protocol import messages as msg


def changed(consumers: int = 1):
    """A job whose cache has come into another mode while its workers run tasks; its name, and its consumers."""
    service = Driven(point("compute"))
    peers = [service.join(f"c{index}", "a", num_consumers=consumers, consumer=index) for index in range(consumers)]
    for worker in service.workers.values():
        service.plan_tasks(worker)
    assert {task.consumer for task in service.workers["w0"].leases.values()} == set(range(consumers))
    reads(service, peers[0])
    apply(service.state, ModeChosen("a", "put", 0, "a test says so", 0, 1.0, {}, {}))
    reads(service, peers[0])
    return service, peers


def reads(service, peer):
    service.say(inp.ConsumerSaid(peer.client, msg.ConsumerReport(0, [], 100, 0.01, 0.0)))


def in_force(service):
    """What the dispatcher has found when it heard of the job last."""
    seen = service.observed.regimes["a"]
    return None if seen.lease else seen.regime


def test_a_profile_goes_before_the_search_for_a_number_of_workers():
    service, _ = changed()
    job = service.state.jobs["a"]
    assert experiment_of(service.observed, job) == "none"
    job.scaling = Scaling(Scale(1))
    assert experiment_of(service.observed, job) == "scaling"
    apply(service.state, ModeChosen("a", "profile", -1, "a test says so", 0, 1.0, {}, {}))
    assert (experiment_of(service.observed, job), cache_regime(job)) == ("profile", "profile -1")


def test_a_mode_is_in_force_when_the_last_task_of_the_one_before_has_ended():
    service, peers = changed()
    assert in_force(service) is None
    service.end_earlier("a")
    reads(service, peers[0])
    assert in_force(service) == Regime(frozenset({"w0"}), "put 0")


def test_other_workers_are_another_regime_that_is_in_force_at_once():
    service, peers = changed()
    service.end_earlier("a")
    service.add_worker("w1")
    reads(service, peers[0])
    assert in_force(service) == Regime(frozenset({"w0", "w1"}), "put 0")


def test_tasks_of_a_consumer_that_is_lost_keep_no_mode_from_being_in_force():
    service, peers = changed(2)
    service.say(inp.ClientSessionLost(peers[1].client))
    for lease, task in list(service.workers["w0"].leases.items()):
        if task.consumer == 0:
            service.finish(service.workers["w0"], lease)
    assert service.workers["w0"].leases
    reads(service, peers[0])
    assert in_force(service) == Regime(frozenset({"w0"}), "put 0")


def test_workers_that_are_to_leave_make_elements_until_they_have_done_what_they_have():
    service, _ = changed()
    service.add_worker("w1")
    service.say(inp.WorkerSaid("w0", msg.WorkerLeaving()))
    assert "w0" in {worker.id for worker in makers(service.state, "a")}
