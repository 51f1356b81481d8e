"""A driver that checks each plan and outcome of a scheduler against the documented rules, in front of `FakeModel`."""

from collections import Counter
from collections.abc import Mapping

import core_rules as rules
from core_fake_model import FakeModel, unscheduled
from core_waits import WaitBook

from headrace_core.knobs.resolve import resolve
from headrace_core.scheduler import events, invariants
from headrace_core.scheduler.events import FinishReason, Request, ScheduledSeq, StepPlan, StepResult
from headrace_core.scheduler.prefix_cache import digest
from headrace_core.trace.history import History
from headrace_core.trace.record import RecordingScheduler
from headrace_core.trace.replay import replay

MODEL_LEN = 24
CEILINGS = {"max_num_seqs": 12, "max_num_batched_tokens": 32}


class Harness:
    """Every call goes to a recording scheduler; at the end the recording is replayed."""

    def __init__(
        self, knobs: Mapping[str, object], num_blocks: int, *, expected: int = 0, hash_mask: int | None = None
    ) -> None:  # fmt: skip
        config = resolve(knobs, ceilings=CEILINGS)
        self.lines: list[str] = []
        self.history = History()
        self.scheduler = RecordingScheduler(
            config, num_blocks=num_blocks, max_model_len=MODEL_LEN, write=self.lines.append, observer=self.history
        )
        self.requests: dict[str, Request] = {}
        self.seeds: dict[str, int] = {}
        self.model = FakeModel(config.block_size, self.requests, self.seeds)
        self.waits = WaitBook(self.scheduler)
        self.now = 0.0
        self.plans: list[StepPlan] = []
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, FinishReason] = {}
        self.computed: Counter[str] = Counter()
        self.starting: set[str] = set()  # have no position computed
        self.given: Counter[str] = Counter()  # positions that a start did not have to compute
        self.shielded: set[str] = set()
        self.begun: dict[str, events.Started] = {}
        self.cut_short: set[str] = set()  # ended by the driver
        self.tokens_of_ended: Counter[str] = Counter()
        self.back_to_back: str | None = None
        self.plan_in_flight: StepPlan | None = None
        self.scheduler.expect([1] * expected, 0.0)
        self.collides = hash_mask is not None
        if hash_mask is not None:
            self.scheduler.state.cache.hasher = lambda data: bytes([digest(data)[0] & hash_mask])

    def call(self, name: str, *args: object) -> object:
        self.now += 0.25
        answer = getattr(self.scheduler, name)(*args, self.now)
        if isinstance(answer, events.Admitted):
            self.waits.arrived(answer.request_id, self.now - 0.25, self.now)
        self.waits.after(name, self.now)
        return answer

    # What the driver does

    def submit(
        self, prompt: tuple[int, ...], max_tokens: int, stop: frozenset[int], priority: int, *, salt: str = "",
        reads_cache: bool = True, fork_of: str | None = None,
    ) -> str | None:  # fmt: skip
        """The id if it was admitted."""
        request = Request(
            request_id=f"r{len(self.requests)}",
            prompt_token_ids=prompt,
            max_tokens=max_tokens,
            arrival=self.now,
            stop_token_ids=stop,
            priority=priority,
            cache_salt=salt,
            reads_cache=reads_cache,
            fork_of=fork_of,
        )
        answer = self.call("submit", request)
        if isinstance(answer, events.Rejected):
            assert answer.reason in (
                events.RejectReason.QUEUE_FULL,
                events.RejectReason.NEVER_FITS,
                events.RejectReason.TOO_LONG,
            )
            assert (answer.retry_after is not None) == (answer.reason is events.RejectReason.QUEUE_FULL)
            return None
        assert answer == events.Admitted(request.request_id)
        self.seeds[request.request_id] = len(self.requests)
        self.requests[request.request_id] = request
        self.outputs[request.request_id] = []
        self.starting.add(request.request_id)
        return request.request_id

    def submit_forks(self, sibling: str, count: int) -> None:
        """As with n > 1: the same prompt, right after, with ends of their own."""
        first = self.requests[sibling]
        for number in range(count):
            self.submit(
                first.prompt_token_ids, 1 + (first.max_tokens + number) % 10, first.stop_token_ids, first.priority,
                salt=first.cache_salt, reads_cache=first.reads_cache, fork_of=sibling,
            )  # fmt: skip

    def end(self, request_id: str, *, reason: FinishReason | None = None) -> None:
        answer = self.call("abort", request_id) if reason is None else self.call("finish", request_id, reason)
        if request_id in self.ended:
            assert answer is None
            return
        self.cut_short.add(request_id)
        self.ended[request_id] = reason or FinishReason.ABORT
        assert answer == events.Finished(request_id, self.ended[request_id], len(self.outputs[request_id]))

    def reconfigure(self, changes: Mapping[str, object]) -> None:
        before, generation = self.scheduler.config, self.scheduler.generation
        answer = self.call("reconfigure", changes)
        changed = self.scheduler.config != before
        if isinstance(answer, events.ChangeRefused):
            assert answer.problems
            assert not changed
        assert self.scheduler.generation == generation + changed
        if isinstance(answer, events.Reconfigured):
            assert answer == events.Reconfigured(generation + changed, self.scheduler.config)

    def plan(self) -> StepPlan | None:
        before = rules.Before(self.scheduler)
        plan = self.call("plan")
        assert (plan is None) == (not self.scheduler.has_work), "work never waits for nothing"
        if not isinstance(plan, StepPlan):
            return None
        self.plan_in_flight = plan
        self.plans.append(plan)
        for request_id in plan.preempted:
            assert request_id not in self.shielded, "evicted again before it made progress"
            self.shielded.add(request_id)
            self.starting.add(request_id)
        self._check_rows(plan)
        self._check_rules(plan, before)
        return plan

    def commit(self, failed: frozenset[str] = frozenset()) -> None:
        plan, self.plan_in_flight = self.plan_in_flight, None
        assert plan is not None
        tokens = self.model.run(plan)
        self._spoil(plan, failed)
        live = {row.request_id for row in plan.seqs if row.request_id not in self.ended}
        outcomes = self.call("commit", plan, StepResult(tokens=tokens, failed=failed))
        assert isinstance(outcomes, tuple)
        for row in plan.seqs:
            self._advance(row, failed)
        for outcome in outcomes:
            self._take(outcome, plan, failed)
        for request_id in failed & live:
            assert request_id in self.ended

    def _advance(self, row: ScheduledSeq, failed: frozenset[str]) -> None:
        if row.request_id in self.ended or row.request_id in failed:
            return
        if row.fork_of in failed:
            self.starting.add(row.request_id)  # it waits again
        elif row.fork_of is not None:
            self.computed[row.request_id] = row.start
        else:
            self.computed[row.request_id] += row.num_tokens

    def _spoil(self, plan: StepPlan, failed: frozenset[str]) -> None:
        """What a failed request alone holds, and filled itself, is garbage: nobody may find it."""
        state = self.scheduler.state
        for request_id in failed:
            seq = state.running.get(request_id)
            if seq is None or request_id not in {row.request_id for row in plan.seqs}:
                continue
            for block in seq.blocks:
                entry = state.cache.entry_of(block)
                if state.pool.holders(block) == 1 and (entry is None or entry.owner == seq.number):
                    self.model.poison([block])

    def _take(self, outcome: object, plan: StepPlan, failed: frozenset[str]) -> None:
        match outcome:
            case events.Started(request_id):
                assert request_id not in self.begun
                self.begun[request_id] = outcome
                assert outcome.cached_tokens == self.given[request_id]
            case events.Token(request_id, token, index):
                assert request_id not in self.ended
                assert request_id in self.begun
                assert index == len(self.outputs[request_id])
                self.outputs[request_id].append(token)
                self.shielded.discard(request_id)
            case events.Preempted(request_id):
                assert request_id in plan.preempted
                assert request_id not in self.ended
            case events.Finished(request_id, reason, count):
                assert request_id not in self.ended, "ends exactly once"
                self.ended[request_id] = reason
                assert count == len(self.outputs[request_id])
                assert (reason is FinishReason.ERROR) == (request_id in failed)
            case _:
                raise AssertionError(outcome)

    # What must hold of a plan

    def _check_rows(self, plan: StepPlan) -> None:
        for row in plan.seqs:
            request = self.requests[row.request_id]
            known = (*request.prompt_token_ids, *self.outputs[row.request_id])
            end = row.start + row.num_tokens
            if row.request_id in self.starting:
                self._check_start(row, request)
            assert row.start == self.computed[row.request_id] or row.fork_of, "no position twice, none left out"
            assert row.token_ids == known[row.start : end]
            assert row.num_tokens > 0 or row.fork_of
            assert row.samples == (end == len(known))
        assert len({row.request_id for row in plan.seqs}) == len(plan.seqs)
        assert plan.generation == self.scheduler.generation
        assert plan.step == len(self.plans)

    def _check_start(self, row: ScheduledSeq, request: Request) -> None:
        """The first row of a request, or the first after it was preempted: behind what the cache had."""
        self.starting.discard(row.request_id)
        self.given[row.request_id] = row.start
        if row.fork_of is None:
            self.computed[row.request_id] = row.start
            assert row.start % self.scheduler.config.block_size == 0
            assert row.start == 0 or (request.reads_cache and self.scheduler.config.enable_prefix_caching)
        else:
            assert request.reads_cache

    def _check_rules(self, plan: StepPlan, before: rules.Before) -> None:
        scheduler = self.scheduler
        rules.check_blocks(plan, before, scheduler)
        rules.check_decodes(plan, before)
        rules.check_limits(plan, scheduler.config)
        rules.check_forks(plan, before, scheduler)
        self.back_to_back = rules.check_prefill_order(plan, scheduler, self.back_to_back)
        rules.check_admission(plan, before, scheduler)
        rules.check_evictions(plan, self.requests, scheduler)
        self._check_head(plan, before)

    def _check_head(self, plan: StepPlan, before: rules.Before) -> None:
        """Nobody waits who could have been admitted, and the scheduler knows why the head waits."""
        flight = self.scheduler._in_flight
        assert flight is not None
        obstacle = rules.obstacle_of_head(plan, before, self.scheduler)
        if obstacle is None:
            return
        head, cause = obstacle
        assert cause is not None, f"{head!r} could have been admitted in {plan}"
        assert (head, cause) in flight.builder.blocked
        assert flight.builder.head_cause is cause

    # At the end

    def drain(self) -> None:
        """All finish, in bounded steps; outputs are those of the model alone; a replay gives the same bytes."""
        if self.plan_in_flight is not None:
            self.commit()
        bound = sum((len(r.prompt_token_ids) + r.max_tokens) * (r.max_tokens + 1) for r in self.requests.values())
        for _ in range(bound + 1):
            if self.plan() is None:
                break
            self.commit()
            invariants.check(self.scheduler)
        assert not self.scheduler.has_work
        assert set(self.ended) == set(self.requests)
        self._check_stats()
        self._check_outputs()
        self.check_waits()
        if not self.collides:  # a replay has the real hash
            report = replay(self.lines)
            assert report.ok, report
            assert (report.lines, report.steps) == (len(self.lines), len(self.plans))

    def check_waits(self) -> None:
        for request_id, request in self.requests.items():
            told = self.history.explain(request_id, self.now)
            assert told is not None
            self.waits.compare(request_id, told)
            if told.started is not None:
                assert sum(wait.seconds for wait in told.waits) == told.started - request.arrival
            elif told.ended is not None:
                assert sum(wait.seconds for wait in told.waits) == told.ended - request.arrival
            started = self.begun.get(request_id)
            if started is not None:
                assert (told.started, told.cached_tokens) == (started.at, started.cached_tokens)

    def _check_stats(self) -> None:
        stats = self.scheduler.stats()
        assert (stats.running, stats.waiting, stats.waiting_tokens, stats.kv_usage) == (0, 0, 0, 0.0)
        assert stats.steps == len(self.plans)
        assert stats.cache_hits <= stats.cache_queries
        useful = sum(
            len(self.requests[request_id].prompt_token_ids) + max(0, len(self.outputs[request_id]) - 1)
            for request_id, reason in self.ended.items()
            if reason in (FinishReason.STOP, FinishReason.LENGTH)
        )
        computed = stats.tokens_prefill + stats.tokens_decode - stats.tokens_recomputed - stats.tokens_discarded
        if not self.cut_short:
            assert computed == useful - sum(
                started.cached_tokens
                for request_id, started in self.begun.items()
                if self.ended[request_id] in (FinishReason.STOP, FinishReason.LENGTH)
            ), "every token is useful, cached, recomputed or discarded"

    def _check_outputs(self) -> None:
        for request_id, request in self.requests.items():
            expected, output = unscheduled(request, self.seeds[request_id]), self.outputs[request_id]
            if request_id in self.cut_short or self.ended[request_id] is FinishReason.ERROR:
                assert output == expected[: len(output)]
                continue
            assert output == expected
            stopped = expected[-1] in request.stop_token_ids
            assert self.ended[request_id] is (FinishReason.STOP if stopped else FinishReason.LENGTH)
