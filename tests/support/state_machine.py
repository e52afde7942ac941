"""A state machine that does to tasks and workers whatever can be done to them, in any order, on the real statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Final, Literal, TypeAlias, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import SearchStrategy

from horsies.codec.ids import ID_GENERATOR
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.retention import RetentionWindows
from horsies.model.send import SendOutcome
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.recovery.retention import clean
from horsies.recovery.sweep import sweep
from horsies.store import operators
from horsies.store.claims import ClaimRef
from horsies.store.database import Transaction
from horsies.store.operators import Target, Termination
from horsies.store.tasks import TASKS, TaskStore
from tests.support.simulated_workers import (
    MOST_UNFINISHED,
    RECOVERY,
    STEP_CHOICES,
    TICK_S,
    AgingDatabase,
    OperatorAction,
    SimulatedWorker,
    StepChoices,
    TaskPhase,
    WorkerCondition,
    WorkerFault,
)
from tests.support.task_model import (
    CLAIMED,
    OK,
    RETENTION,
    RUNNING,
    SHUTDOWN,
    TASK_SPECS,
    ExpectedTask,
    ShownState,
    TaskModel,
    TaskSpec,
    send_payload,
)

T = TypeVar("T")

FEWEST_AWAKE: Final = 2
ROUNDS_TO_THE_END: Final = 2
"""In the first one whatever the dead held is taken from them; in the second it is all due."""
OPERATOR_OBSERVER: Final = OperatorObserver(local_config=RECOVERY)
PLAIN_AGES: Final = SweepOptions(force=True)
OLD: Final = timedelta(seconds=RETENTION * TICK_S)
WINDOWS: Final = RetentionWindows(heartbeats=OLD, worker_states=OLD, terminal_records=OLD)
CANCEL: Final = Termination(
    kind="cancel",
    status=TaskStatus.CANCELLED,
    error=TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="by an operator"),
)

OPERATOR: Final = "an operator"
SweepActor: TypeAlias = "SimulatedWorker | Literal['an operator']"


def one_of(listed: Callable[[QueueStateMachine], Sequence[T]]) -> SearchStrategy[T]:
    """One of what the machine has just now; the rule needs a precondition that it has any."""
    machine = cast("SearchStrategy[QueueStateMachine]", st.runner())
    return machine.flatmap(lambda each: st.sampled_from(listed(each)))


class QueueStateMachine(RuleBasedStateMachine):
    """Every rule asks something of the queue and writes down what must have come of it; the tables are then compared.

    What the queue answers is compared as well, and told together with what is wrong in the tables. The rules are few
    and broad, for in each example some are left out.
    """

    def __init__(self, stage: AgingDatabase) -> None:
        super().__init__()
        self._stage = stage
        self._model = TaskModel()
        self._workers: list[SimulatedWorker] = []
        self._unexpected_answers: list[str] = []
        self._is_sound = True
        stage.run(stage.clear())

    @property
    def awake(self) -> list[SimulatedWorker]:
        return self._in(WorkerCondition.AWAKE)

    @property
    def alive(self) -> list[SimulatedWorker]:
        return [*self.awake, *self._in(WorkerCondition.STANDING_STILL)]

    @property
    def possible_steps(self) -> list[tuple[SimulatedWorker, ClaimRef | None]]:
        """What may go on: a worker with one of the tasks in its hands, or with a claim."""
        return [(worker, hold) for worker in self.awake for hold in (*worker.in_flight, None)]

    @property
    def shown(self) -> list[tuple[ExpectedTask, ShownState]]:
        """Tasks as an operator may have them before his eyes: as they are, or as they were before."""
        return [(life, standing) for life in self._model.tasks.values() for standing in life.past_states[-2:]]

    @initialize(plans=st.tuples(STEP_CHOICES, STEP_CHOICES))
    def begin_at_work(self, plans: tuple[StepChoices, StepChoices]) -> None:
        self._replace_the_dead()
        for worker, plan in zip(self.awake, plans, strict=True):
            self.work((worker, None), plan)

    @rule(spec=TASK_SPECS, times=st.integers(1, 2))
    def send(self, spec: TaskSpec, times: int) -> None:
        """Once, or again because nobody heard the answer."""
        self._send(spec, times)

    @rule(turn=one_of(lambda self: self.possible_steps), plan=STEP_CHOICES)
    def work(self, turn: tuple[SimulatedWorker, ClaimRef | None], plan: StepChoices) -> None:
        """A worker claims; or what it has claimed starts, what has started begins, what has begun ends."""
        worker, hold = turn
        if hold is None:
            self._send(plan.task_spec)
            self._claim(worker, plan)
        elif plan.releases and worker.in_flight[hold] is not TaskPhase.BEGUN:
            self._put_back(worker, hold)
        elif worker.in_flight[hold] is TaskPhase.CLAIMED:
            self._start(worker, hold, plan.phase)
        elif worker.in_flight[hold] is TaskPhase.HANDED:
            self._set_phase(worker, hold, TaskPhase.BEGUN)
        else:
            self._finish(worker, hold, plan.code, plan.times)

    @rule(ticks=st.integers(0, 2), judge=one_of(lambda self: [None, OPERATOR, *self.awake]), cleans=st.booleans())
    def wait(self, ticks: int, judge: SweepActor | None, cleans: bool) -> None:
        """Time passes, for those as well who stand still; then somebody may look after the dead."""
        for _ in range(ticks):
            self._tick()
        if judge is not None:
            self._sweep(judge)
        if cleans:
            self._stage.run(clean(self._stage.database, WINDOWS, budget_s=None))
            self._model.delete_old()

    @rule(worker=one_of(lambda self: self.alive), blow=st.sampled_from(WorkerFault))
    def inject_fault(self, worker: SimulatedWorker, blow: WorkerFault) -> None:
        """Whoever stands still already goes on, or is killed."""
        match worker.condition, blow:
            case WorkerCondition.AWAKE, WorkerFault.STAND_STILL:
                worker.condition = WorkerCondition.STANDING_STILL
            case WorkerCondition.AWAKE, WorkerFault.STOP:
                self._stop(worker)
            case _, WorkerFault.KILL:
                self._kill(worker)
            case _:
                self._wake(worker)
        self._replace_the_dead()

    @rule(
        worker=one_of(lambda self: self.awake),
        ticks=st.integers(1, 4),
        judge=one_of(lambda self: [OPERATOR, OPERATOR, OPERATOR, None, *self.awake]),
        plan=STEP_CHOICES,
    )
    def disconnect_worker(
        self, worker: SimulatedWorker, ticks: int, judge: SweepActor | None, plan: StepChoices
    ) -> None:
        """A worker at work is not heard for a while, others may take over, and it is back as if nothing had been."""
        if not worker.in_flight:
            self.work((worker, None), plan)
        worker.condition = WorkerCondition.STANDING_STILL
        for _ in range(ticks):
            self._tick()
        if judge is not None and judge is not worker:
            self._sweep(judge)
            self._tick()
            self.work((self.awake[0], None), plan)
        self._wake(worker)
        for hold in list(worker.in_flight):
            self.work((worker, hold), plan)

    @precondition(lambda self: self.shown)
    @rule(seen=one_of(lambda self: self.shown), word=st.sampled_from(OperatorAction))
    def operate(self, seen: tuple[ExpectedTask, ShownState], word: OperatorAction) -> None:
        """A pause lasts until the next word."""
        life, standing = seen
        self._resume()
        if word is OperatorAction.PAUSE:
            self._pause(life.spec.queue)
        else:
            self._act(life, standing, is_cancelled=word is OperatorAction.CANCEL)

    @invariant()
    def no_violations(self) -> None:
        faults = [*self._model.violations(self._stage.run(self._stage.tables())), *self._unexpected_answers]
        self._is_sound = not faults
        assert self._is_sound, "; ".join(faults)

    def teardown(self) -> None:
        """Everybody dies; one new worker brings whatever was accepted to its end."""
        if not self._is_sound:
            return
        for worker in self.alive:
            self._kill(worker)
        self._resume()
        self._replace_the_dead()
        heir = self.awake[0]
        for _ in range(ROUNDS_TO_THE_END):
            self.wait(ticks=3, judge=heir, cleans=False)
            self._claim(heir, StepChoices())
            for hold in list(heir.in_flight):
                self._finish(heir, hold, OK, times=1)
            self.no_violations()
        assert not self._model.unfinished, f"C1 {self._model.unfinished} will never end"

    def _in(self, condition: WorkerCondition) -> list[SimulatedWorker]:
        return [worker for worker in self._workers if worker.condition is condition]

    def _expect(self, what: str, told: object, expected: object) -> None:
        if told != expected:
            self._unexpected_answers.append(f"{what}: {told}, not {expected}")

    def _held(self, hold: ClaimRef, status: TaskStatus) -> ExpectedTask | None:
        """The task, where it is really held so."""
        life = self._model.tasks.get(hold.task_id)
        return life if life is not None and life.is_held(hold, status) else None

    def _set_phase(self, worker: SimulatedWorker, hold: ClaimRef, phase: TaskPhase) -> None:
        worker.in_flight[hold] = phase
        if phase is TaskPhase.BEGUN:
            self._unexpected_answers += self._model.start_execution(hold)

    def _drop(self, worker: SimulatedWorker, hold: ClaimRef) -> None:
        worker.in_flight.pop(hold)
        self._model.end_execution(hold)

    def _send(self, spec: TaskSpec, times: int = 1) -> None:
        if len(self._model.unfinished) == MOST_UNFINISHED:
            return
        task_id = ID_GENERATOR.next_uuid()
        payload = send_payload(str(task_id), spec, tick_s=TICK_S)
        sent = [self._stage.run(TaskStore(self._stage.database).enqueue(payload)).outcome for _ in range(times)]
        self._expect("C1 sent", sent, [SendOutcome.STORED, SendOutcome.ALREADY_STORED][:times])
        self._model.accept(task_id, spec)

    def _claim(self, worker: SimulatedWorker, plan: StepChoices) -> None:
        due, is_only_claimed = self._model.claimable(), plan.phase is TaskPhase.CLAIMED
        rows = self._stage.run(worker.claim(plan.count, starts=not is_only_claimed, has_lease=plan.has_lease))
        self._expect("C1 claimed", len(rows), min(plan.count, len(due)))
        for row in rows:
            life = self._model.tasks[row.id]
            came_as = CLAIMED if is_only_claimed or life.status is CLAIMED else RUNNING
            told = (life in due, row.status, row.claim_token, row.overlap_possible)
            self._expect(f"C2 claim of {life}", told, (True, came_as, life.token + 1, life.may_overlap))
            hold = ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker.ids[-1])
            life.claim(hold, came_as, self._model.now, has_lease=plan.has_lease)
            if plan.answer_arrives:
                self._set_phase(worker, hold, TaskPhase.CLAIMED if came_as is CLAIMED else plan.phase)

    def _put_back(self, worker: SimulatedWorker, hold: ClaimRef) -> None:
        phase = worker.in_flight[hold]
        life = self._held(hold, CLAIMED if phase is TaskPhase.CLAIMED else RUNNING)
        self._expect(f"C2 return of {life}", self._stage.run(worker.release(hold, phase)), life is not None)
        if life is not None:
            life.release(self._model.now)
        self._drop(worker, hold)

    def _start(self, worker: SimulatedWorker, hold: ClaimRef, phase: TaskPhase) -> None:
        life = self._held(hold, CLAIMED)
        may_start = life is not None and life.may_start(self._model.now)
        self._expect(f"C2 start of {life}", self._stage.run(worker.start(hold)), may_start)
        if life is not None and may_start:
            life.start(self._model.now)
            self._set_phase(worker, hold, phase)
            return
        is_late = life is not None and life.good_until <= self._model.now
        self._expect(f"C2 expiry of {life}", self._stage.run(worker.expire(hold)), is_late)
        if life is not None and is_late:
            life.expire(self._model.now)
            self._drop(worker, hold)

    def _finish(self, worker: SimulatedWorker, hold: ClaimRef, code: str, times: int) -> None:
        """Once, or again because nobody heard the answer."""
        for _ in range(times):
            life = self._held(hold, RUNNING)
            asks_again = hold.task_id in self._model.tasks and code in self._model.tasks[hold.task_id].spec.codes
            is_taken = self._stage.run(worker.finish(hold, code, asks_again=asks_again))
            self._expect(f"C2 end of {life}", is_taken, life is not None)
            if life is not None:
                life.finish(code, self._model.now)
        self._drop(worker, hold)

    def _tick(self) -> None:
        """Whoever is awake beats, and gives back what it never heard of."""
        self._stage.run(self._stage.advance_clock())
        self._model.now += 1
        for worker in self.awake:
            self._stage.run(worker.send_worker_heartbeat(self._model.now))
            self._beat(worker)
            self._reconcile(worker)

    def _sweep(self, judge: SweepActor) -> None:
        """By a worker, as far as it has listened, or by an operator who goes by plain ages."""
        by, options = (
            (OPERATOR_OBSERVER, PLAIN_AGES) if judge == OPERATOR else (judge.observer(self._model.now), SweepOptions())
        )
        report = self._stage.run(sweep(self._stage.database, options, observer=by))
        settled = self._model.sweep(-inf if judge == OPERATOR else judge.listening_since)
        self._expect("C6 swept", {task.task_id for task in report.tasks if task.applied}, settled)

    def _beat(self, worker: SimulatedWorker) -> None:
        for hold, is_held in self._stage.run(worker.send_task_heartbeats()).items():
            life = self._held(hold, CLAIMED if worker.in_flight[hold] is TaskPhase.CLAIMED else RUNNING)
            self._expect(f"C2 beat for {life}", is_held, life is not None)
            if life is not None:
                life.beat(self._model.now)
            else:
                self._drop(worker, hold)

    def _reconcile(self, worker: SimulatedWorker) -> None:
        unheard = [life for life in self._model.held_by(worker.ids) if life.claim_ref not in worker.in_flight]
        given_back = self._stage.run(worker.reconcile())
        self._expect("C5 given back", set(given_back), {life.claim_ref for life in unheard})
        for life in unheard:
            life.release(self._model.now)

    def _replace_the_dead(self) -> None:
        while len(self.awake) < FEWEST_AWAKE:
            worker = SimulatedWorker(self._stage.database, number=len(self._workers) + 1)
            self._workers.append(worker)
            self._stage.run(worker.join(self._model.now))

    def _wake(self, worker: SimulatedWorker) -> None:
        """With everything that it had in hand; it hears only with its next beat what is no longer its own."""
        worker.condition = WorkerCondition.AWAKE
        worker.listening_since = self._model.now
        self._stage.run(worker.send_worker_heartbeat(self._model.now))

    def _kill(self, worker: SimulatedWorker) -> None:
        worker.condition = WorkerCondition.DEAD
        for hold in list(worker.in_flight):
            self._drop(worker, hold)

    def _stop(self, worker: SimulatedWorker) -> None:
        """In good order, but for what it never heard of."""
        for hold, phase in list(worker.in_flight.items()):
            if phase is TaskPhase.BEGUN:
                self._finish(worker, hold, SHUTDOWN, times=1)
            else:
                self._put_back(worker, hold)
        self._stage.run(worker.report_stopped())
        self._model.stopped |= set(worker.ids)
        worker.condition = WorkerCondition.DEAD

    def _pause(self, queue: str) -> None:
        self._stage.run(self._stage.database.fetch(TASKS.pause_queue, queue, OPERATOR, None))
        self._model.paused.add(queue)

    def _resume(self) -> None:
        for queue in self._model.paused:
            self._stage.run(self._stage.database.fetch(TASKS.resume_queue, queue))
        self._model.paused.clear()

    def _act(self, life: ExpectedTask, standing: ShownState, *, is_cancelled: bool) -> None:
        """Nothing happens to a task that has moved since it was shown."""
        is_as_shown = life.past_states[-1] == standing and not life.status.is_terminal
        target = Target(id=life.id, status=standing.status, claim_token=standing.claim_token)

        async def moved(transaction: Transaction) -> bool:
            if is_cancelled:
                return bool(await operators.end_tasks(transaction, [target], CANCEL))
            return bool(await operators.requeue(transaction, [target], may_overlap=True))

        self._expect(f"C2 act on {life}", self._stage.run(self._stage.database.run(moved)), is_as_shown)
        if is_as_shown:
            life.cancel(self._model.now) if is_cancelled else life.requeue(self._model.now)


def state_machine_for(stage: AgingDatabase) -> type[QueueStateMachine]:
    """The machine as hypothesis wants it: a class that it makes itself, once for each example."""

    class LivesOnStage(QueueStateMachine):
        def __init__(self) -> None:
            super().__init__(stage)

    return LivesOnStage
