"""A service in memory whose jobs have the plans that they would have, of which each task gives one output."""

from typing import cast

from tests.unit.control.control_driver import FakePlan, Service

from millrace.control.state.state import State
from millrace.planning.plan import make_plan


class ServiceOfPlans(Service):
    """Service whose jobs have real plans."""

    def fresh_state(self):
        return State(self.settings, planner=make_plan, checked=self.checked)

    def finish(self, worker, lease, *, leftovers=None):
        """The driver's plan is the epoch's."""
        ref = worker.leases[lease].ref
        job = self.state.jobs[ref.job]
        self.plan = cast("FakePlan", _Outputs(self.state.plan(job, ref.epoch)))
        super().finish(worker, lease, leftovers=leftovers)


class _Outputs:
    cycle = 0

    def __init__(self, plan):
        self.task = plan.task

    def put_out(self, _task, _left, *, flush):
        del flush
        return ["output"], []
