"""What each request waited for, computed the slow way: by asking every request after every call. Checks `history`."""

from collections import defaultdict

from headrace_core.scheduler.scheduler import Scheduler
from headrace_core.scheduler.sequence import Sequence as Seq
from headrace_core.scheduler.sequence import SequencePhase
from headrace_core.scheduler.wait_cause import WaitCause
from headrace_core.trace.explain import RequestExplanation, Wait

Sums = dict[WaitCause, tuple[int, float]]


class WaitBook:
    """Knows of each request what it waits for at present, and since the last call."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._seen: dict[str, Seq] = {}
        self._cause: dict[str, WaitCause | None] = {}
        self._passed: set[str] = set()  # have been passed over by a plan, or started
        self._started: set[str] = set()
        self._blocked: dict[str, WaitCause] = {}
        self._head_cause: WaitCause | None = None
        self._now = self._planned_at = 0.0
        self.waits: dict[str, Sums] = defaultdict(dict)
        self.stalls: dict[str, Sums] = defaultdict(dict)
        self.held_up: dict[str, Sums] = defaultdict(dict)

    def arrived(self, request_id: str, arrival: float, now: float) -> None:
        self._cause[request_id] = WaitCause.NEXT_STEP
        self._add(self.waits[request_id], WaitCause.NEXT_STEP, 0, now - arrival)

    def after(self, call: str, now: float) -> None:
        """A call was made at `now`."""
        live = self._scheduler.state.live
        for request_id, cause in self._cause.items():
            if request_id in self._seen:
                self._book(request_id, cause, 0, now - self._now)
        self._now = now
        if call == "plan":
            self._note_plan(now)
        for request_id in [*self._cause]:
            if request_id not in live:
                del self._cause[request_id]
                continue
            self._seen[request_id] = live[request_id]
            before, cause = self._cause[request_id], self._cause_of(live[request_id])
            if call == "commit" and before is None and cause is WaitCause.QUEUE_ORDER:
                # A fork whose sibling failed: as if it had been passed over in the plan.
                self._started.discard(request_id)
                self._book(request_id, cause, 1, now - self._planned_at)
            if call == "plan" and cause is not WaitCause.NEXT_STEP:
                self._book(request_id, cause, 1, 0.0)
            self._cause[request_id] = cause

    def compare(self, request_id: str, told: RequestExplanation) -> None:
        """What the scheduler tells of a request is what was booked here."""
        assert _sums(told.waits) == self.waits[request_id], f"waits of {request_id}"
        assert _sums(told.stalls) == self.stalls[request_id], f"stalls of {request_id}"
        assert _sums(told.held_up_by) == self.held_up[request_id], f"what held {request_id} up"

    def _note_plan(self, now: float) -> None:
        flight = self._scheduler._in_flight
        self._planned_at = now
        if flight is None:
            return
        self._blocked = {seq.request_id: cause for seq, cause in flight.builder.blocked}
        self._head_cause = flight.builder.head_cause
        self._passed.update(self._scheduler.state.live)
        self._started.update(row.request_id for row in flight.plan.seqs)

    def _cause_of(self, seq: Seq) -> WaitCause | None:
        request_id = seq.request_id
        if seq.phase is SequencePhase.DECODE:
            return None
        if seq.phase is SequencePhase.PREFILL:
            return self._blocked.get(request_id)
        if seq.evicted:
            return WaitCause.AFTER_PREEMPTION
        if request_id not in self._passed:
            return WaitCause.NEXT_STEP
        if seq.sibling is not None:
            return WaitCause.SIBLING
        return self._blocked.get(request_id, WaitCause.QUEUE_ORDER)

    def _book(self, request_id: str, cause: WaitCause | None, steps: int, seconds: float) -> None:
        if cause is None:
            return
        sums = self.stalls if request_id in self._started else self.waits
        self._add(sums[request_id], cause, steps, seconds)
        if cause is WaitCause.QUEUE_ORDER and self._head_cause is not None:
            self._add(self.held_up[request_id], self._head_cause, steps, seconds)

    @staticmethod
    def _add(sums: Sums, cause: WaitCause, steps: int, seconds: float) -> None:
        if steps or seconds:
            old = sums.get(cause, (0, 0.0))
            sums[cause] = (old[0] + steps, old[1] + seconds)


def _sums(waits: tuple[Wait, ...]) -> Sums:
    return {wait.cause: (wait.steps, wait.seconds) for wait in waits}
