"""A hypothesis state machine: random actions of clients, workers, sweeps and operators, with the real statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Final, Literal, TypeAlias, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import SearchStrategy
from uuid_utils.compat import uuid7

from horsies.engine.pool.protocol import parse_details
from horsies.model.recovery.fleet import OperatorObserver, SweepOptions
from horsies.model.retention import RetentionWindows
from horsies.model.send import SendOutcome
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.recovery.retention import Cleanup
from horsies.recovery.sweep import Sweep
from horsies.store import operators
from horsies.store.claims import ClaimRef
from horsies.store.database import Transaction
from horsies.store.operators import Target, Termination
from horsies.store.tasks import TASKS, TaskStore
from tests.support.simulated_workers import (
    MAX_UNFINISHED,
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

MIN_AWAKE_WORKERS: Final = 2
FINAL_ROUNDS: Final = 2
"""The first recovers the tasks of dead workers; in the second all of them are due."""
OPERATOR_OBSERVER: Final = OperatorObserver(local_config=RECOVERY)
WITHOUT_GRACE: Final = SweepOptions(force=True)
RETENTION_WINDOW: Final = timedelta(seconds=RETENTION * TICK_S)
WINDOWS: Final = RetentionWindows(
    heartbeats=RETENTION_WINDOW, worker_states=RETENTION_WINDOW, terminal_records=RETENTION_WINDOW
)
CANCEL: Final = Termination(
    kind="cancel",
    status=TaskStatus.CANCELLED,
    error=TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="by an operator"),
)

OPERATOR: Final = "an operator"
SweepActor: TypeAlias = "SimulatedWorker | Literal['an operator']"


def one_of(options: Callable[[QueueStateMachine], Sequence[T]]) -> SearchStrategy[T]:
    """Draw one of the machine's current options; the rule needs a precondition that there is one."""
    machine = cast("SearchStrategy[QueueStateMachine]", st.runner())
    return machine.flatmap(lambda current: st.sampled_from(options(current)))


class QueueStateMachine(RuleBasedStateMachine):
    """Each rule acts on the queue and on the model; afterwards the tables and all answers must match the model.

    Violations are numbered by promise (C1 to C6). There are few, broad rules because hypothesis leaves some out of each
    example.
    """

    def __init__(self, aging: AgingDatabase) -> None:
        super().__init__()
        self._aging = aging
        self._model = TaskModel()
        self._workers: list[SimulatedWorker] = []
        self._unexpected_answers: list[str] = []
        self._has_passed = True
        aging.run(aging.clear())

    @property
    def awake(self) -> list[SimulatedWorker]:
        return self._in(WorkerCondition.AWAKE)

    @property
    def alive(self) -> list[SimulatedWorker]:
        return [*self.awake, *self._in(WorkerCondition.FROZEN)]

    @property
    def possible_steps(self) -> list[tuple[SimulatedWorker, ClaimRef | None]]:
        """Possible steps: a worker with one of its in-flight tasks, or with a new claim (None)."""
        return [(worker, claim_ref) for worker in self.awake for claim_ref in (*worker.in_flight, None)]

    @property
    def shown(self) -> list[tuple[ExpectedTask, ShownState]]:
        """Tasks as an operator may see them: in their current or previous state."""
        return [(task, state) for task in self._model.tasks.values() for state in task.past_states[-2:]]

    @initialize(choices_of_both=st.tuples(STEP_CHOICES, STEP_CHOICES))
    def start_workers(self, choices_of_both: tuple[StepChoices, StepChoices]) -> None:
        self._replace_dead_workers()
        for worker, choices in zip(self.awake, choices_of_both, strict=True):
            self.work((worker, None), choices)

    @rule(spec=TASK_SPECS, times=st.integers(1, 2))
    def send(self, spec: TaskSpec, times: int) -> None:
        """Send a task; twice if the first answer was lost."""
        self._send(spec, times)

    @rule(step=one_of(lambda self: self.possible_steps), choices=STEP_CHOICES)
    def work(self, step: tuple[SimulatedWorker, ClaimRef | None], choices: StepChoices) -> None:
        """A worker claims tasks, or its in-flight task goes one phase further."""
        worker, claim_ref = step
        if claim_ref is None:
            self._send(choices.task_spec)
            self._claim(worker, choices)
        elif choices.releases and worker.in_flight[claim_ref] is not TaskPhase.BEGUN:
            self._release(worker, claim_ref)
        elif worker.in_flight[claim_ref] is TaskPhase.CLAIMED:
            self._start(worker, claim_ref, choices.phase)
        elif worker.in_flight[claim_ref] is TaskPhase.STARTED:
            self._set_phase(worker, claim_ref, TaskPhase.BEGUN)
        else:
            self._finish(worker, claim_ref, choices.code, choices.times)

    @rule(ticks=st.integers(0, 2), sweeper=one_of(lambda self: [None, OPERATOR, *self.awake]), cleans=st.booleans())
    def wait(self, ticks: int, sweeper: SweepActor | None, cleans: bool) -> None:
        """Time passes, also for frozen workers; then someone may sweep and clean up."""
        for _ in range(ticks):
            self._tick()
        if sweeper is not None:
            self._sweep(sweeper)
        if cleans:
            self._aging.run(Cleanup(self._aging.database, WINDOWS, budget_s=None).run())
            self._model.delete_old()

    @rule(worker=one_of(lambda self: self.alive), fault=st.sampled_from(WorkerFault))
    def inject_fault(self, worker: SimulatedWorker, fault: WorkerFault) -> None:
        """Freeze, stop or kill a worker; a frozen one is woken or killed."""
        match worker.condition, fault:
            case WorkerCondition.AWAKE, WorkerFault.FREEZE:
                worker.condition = WorkerCondition.FROZEN
            case WorkerCondition.AWAKE, WorkerFault.STOP:
                self._stop(worker)
            case _, WorkerFault.KILL:
                self._kill(worker)
            case _:
                self._wake(worker)
        self._replace_dead_workers()

    @rule(
        worker=one_of(lambda self: self.awake),
        ticks=st.integers(1, 4),
        sweeper=one_of(lambda self: [OPERATOR, OPERATOR, OPERATOR, None, *self.awake]),
        choices=STEP_CHOICES,
    )
    def disconnect_worker(
        self, worker: SimulatedWorker, ticks: int, sweeper: SweepActor | None, choices: StepChoices
    ) -> None:
        """A busy worker is silent for a while, others may take over its tasks, and then it goes on."""
        if not worker.in_flight:
            self.work((worker, None), choices)
        worker.condition = WorkerCondition.FROZEN
        for _ in range(ticks):
            self._tick()
        if sweeper is not None and sweeper is not worker:
            self._sweep(sweeper)
            self._tick()
            self.work((self.awake[0], None), choices)
        self._wake(worker)
        for claim_ref in list(worker.in_flight):
            self.work((worker, claim_ref), choices)

    @precondition(lambda self: self.shown)
    @rule(shown=one_of(lambda self: self.shown), action=st.sampled_from(OperatorAction))
    def operate(self, shown: tuple[ExpectedTask, ShownState], action: OperatorAction) -> None:
        """An operator acts on a task or pauses a queue; a pause lasts until the next action."""
        task, state = shown
        self._resume()
        if action is OperatorAction.PAUSE:
            self._pause(task.spec.queue)
        else:
            self._act(task, state, is_cancelled=action is OperatorAction.CANCEL)

    @invariant()
    def no_violations(self) -> None:
        violations = [*self._model.violations(self._aging.run(self._aging.tables())), *self._unexpected_answers]
        self._has_passed = not violations
        assert self._has_passed, "; ".join(violations)

    def teardown(self) -> None:
        """Kill all workers; one new worker must finish all accepted tasks."""
        if not self._has_passed:
            return
        for worker in self.alive:
            self._kill(worker)
        self._resume()
        self._replace_dead_workers()
        last_worker = self.awake[0]
        for _ in range(FINAL_ROUNDS):
            self.wait(ticks=3, sweeper=last_worker, cleans=False)
            self._claim(last_worker, StepChoices())
            for claim_ref in list(last_worker.in_flight):
                self._finish(last_worker, claim_ref, OK, times=1)
            self.no_violations()
        assert not self._model.unfinished, f"C1 {self._model.unfinished} never finish"

    def _in(self, condition: WorkerCondition) -> list[SimulatedWorker]:
        return [worker for worker in self._workers if worker.condition is condition]

    def _expect(self, what: str, actual: object, expected: object) -> None:
        if actual != expected:
            self._unexpected_answers.append(f"{what}: {actual}, expected {expected}")

    def _owned_task(self, claim_ref: ClaimRef, status: TaskStatus) -> ExpectedTask | None:
        """The task, if this claim and status are current."""
        task = self._model.tasks.get(claim_ref.task_id)
        return task if task is not None and task.has_claim(claim_ref, status) else None

    def _set_phase(self, worker: SimulatedWorker, claim_ref: ClaimRef, phase: TaskPhase) -> None:
        worker.in_flight[claim_ref] = phase
        if phase is TaskPhase.BEGUN:
            self._unexpected_answers += self._model.start_execution(claim_ref)

    def _drop(self, worker: SimulatedWorker, claim_ref: ClaimRef) -> None:
        worker.in_flight.pop(claim_ref)
        self._model.end_execution(claim_ref)

    def _send(self, spec: TaskSpec, times: int = 1) -> None:
        if len(self._model.unfinished) == MAX_UNFINISHED:
            return
        task_id = uuid7()
        payload = send_payload(str(task_id), spec, tick_s=TICK_S)
        sent = [self._aging.run(TaskStore(self._aging.database).enqueue(payload)).outcome for _ in range(times)]
        self._expect("C1 sent", sent, [SendOutcome.STORED, SendOutcome.ALREADY_STORED][:times])
        self._model.accept(task_id, spec)

    def _claim(self, worker: SimulatedWorker, choices: StepChoices) -> None:
        due, is_only_claimed = self._model.claimable(), choices.phase is TaskPhase.CLAIMED
        if not is_only_claimed and not choices.has_lease:  # claimed as a chunk, without expired leases
            due = [task for task in due if task.status is not CLAIMED]
        rows = self._aging.run(worker.claim(choices.count, starts=not is_only_claimed, has_lease=choices.has_lease))
        self._expect("C1 claimed", len(rows), min(choices.count, len(due)))
        for row in rows:
            task = self._model.tasks[row.id]
            claimed_as = CLAIMED if is_only_claimed or task.status is CLAIMED else RUNNING
            may_overlap = parse_details(row.details).overlap_possible
            actual = (task in due, CLAIMED if row.worker_pid is None else RUNNING, row.claim_token, may_overlap)
            self._expect(f"C2 claim of {task}", actual, (True, claimed_as, task.token + 1, task.may_overlap))
            claim_ref = ClaimRef(task_id=row.id, claim_token=row.claim_token, worker_id=worker.ids[-1])
            task.claim(claim_ref, claimed_as, self._model.now, has_lease=choices.has_lease)
            if choices.answer_arrives:
                self._set_phase(worker, claim_ref, TaskPhase.CLAIMED if claimed_as is CLAIMED else choices.phase)

    def _release(self, worker: SimulatedWorker, claim_ref: ClaimRef) -> None:
        phase = worker.in_flight[claim_ref]
        task = self._owned_task(claim_ref, CLAIMED if phase is TaskPhase.CLAIMED else RUNNING)
        self._expect(f"C2 release of {task}", self._aging.run(worker.release(claim_ref, phase)), task is not None)
        if task is not None:
            task.release(self._model.now)
        self._drop(worker, claim_ref)

    def _start(self, worker: SimulatedWorker, claim_ref: ClaimRef, phase: TaskPhase) -> None:
        task = self._owned_task(claim_ref, CLAIMED)
        may_start = task is not None and task.may_start(self._model.now)
        self._expect(f"C2 start of {task}", self._aging.run(worker.start(claim_ref)), may_start)
        if task is not None and may_start:
            task.start(self._model.now)
            self._set_phase(worker, claim_ref, phase)
            return
        is_overdue = task is not None and task.good_until <= self._model.now
        self._expect(f"C2 expiry of {task}", self._aging.run(worker.expire(claim_ref)), is_overdue)
        if task is not None and is_overdue:
            task.expire(self._model.now)
            self._drop(worker, claim_ref)

    def _finish(self, worker: SimulatedWorker, claim_ref: ClaimRef, code: str, times: int) -> None:
        """Finish a task; twice if the first answer was lost."""
        for _ in range(times):
            task = self._owned_task(claim_ref, RUNNING)
            is_accepted = self._aging.run(worker.finish(claim_ref, code, self._model.tasks.get(claim_ref.task_id)))
            self._expect(f"C2 end of {task}", is_accepted, task is not None)
            if task is not None:
                task.finish(code, self._model.now)
        self._drop(worker, claim_ref)

    def _tick(self) -> None:
        """Advance the clock; workers that are awake send heartbeats and reconcile."""
        self._aging.run(self._aging.advance_clock())
        self._model.now += 1
        for worker in self.awake:
            self._aging.run(worker.send_worker_heartbeat(self._model.now))
            self._send_heartbeats(worker)
            self._reconcile(worker)

    def _sweep(self, sweeper: SweepActor) -> None:
        """Sweep as a worker, limited by how long it has listened, or as an operator without that limit."""
        observer, options = (
            (OPERATOR_OBSERVER, WITHOUT_GRACE)
            if sweeper == OPERATOR
            else (sweeper.observer(self._model.now), SweepOptions())
        )
        report = self._aging.run(Sweep(self._aging.database, options, observer=observer).run())
        recovered = self._model.sweep(-inf if sweeper == OPERATOR else sweeper.listening_since)
        self._expect("C6 swept", {task.task_id for task in report.tasks if task.applied}, recovered)

    def _send_heartbeats(self, worker: SimulatedWorker) -> None:
        for claim_ref, is_claim_valid in self._aging.run(worker.send_task_heartbeats()).items():
            task = self._owned_task(claim_ref, CLAIMED if worker.in_flight[claim_ref] is TaskPhase.CLAIMED else RUNNING)
            self._expect(f"C2 heartbeat of {task}", is_claim_valid, task is not None)
            if task is not None:
                task.heartbeat(self._model.now)
            else:
                self._drop(worker, claim_ref)

    def _reconcile(self, worker: SimulatedWorker) -> None:
        unknown = [task for task in self._model.owned_by(worker.ids) if task.claim_ref not in worker.in_flight]
        released = self._aging.run(worker.reconcile())
        self._expect("C5 reconciled", set(released), {task.claim_ref for task in unknown})
        for task in unknown:
            task.release(self._model.now)

    def _replace_dead_workers(self) -> None:
        while len(self.awake) < MIN_AWAKE_WORKERS:
            worker = SimulatedWorker(self._aging.database, number=len(self._workers) + 1)
            self._workers.append(worker)
            self._aging.run(worker.join(self._model.now))

    def _wake(self, worker: SimulatedWorker) -> None:
        """Wake with all in-flight tasks; only its next heartbeat tells which claims it has lost."""
        worker.condition = WorkerCondition.AWAKE
        worker.listening_since = self._model.now
        self._aging.run(worker.send_worker_heartbeat(self._model.now))

    def _kill(self, worker: SimulatedWorker) -> None:
        worker.condition = WorkerCondition.DEAD
        for claim_ref in list(worker.in_flight):
            self._drop(worker, claim_ref)

    def _stop(self, worker: SimulatedWorker) -> None:
        """Orderly stop; tasks whose claim answer was lost stay behind."""
        for claim_ref, phase in list(worker.in_flight.items()):
            if phase is TaskPhase.BEGUN:
                self._finish(worker, claim_ref, SHUTDOWN, times=1)
            else:
                self._release(worker, claim_ref)
        self._aging.run(worker.report_stopped())
        self._model.stopped |= set(worker.ids)
        worker.condition = WorkerCondition.DEAD

    def _pause(self, queue: str) -> None:
        self._aging.run(self._aging.database.fetch(TASKS.pause_queue, queue, OPERATOR, None))
        self._model.paused.add(queue)

    def _resume(self) -> None:
        for queue in self._model.paused:
            self._aging.run(self._aging.database.fetch(TASKS.resume_queue, queue))
        self._model.paused.clear()

    def _act(self, task: ExpectedTask, state: ShownState, *, is_cancelled: bool) -> None:
        """Cancel or requeue a task; refused if it has changed since it was shown."""
        is_as_shown = task.past_states[-1] == state and not task.status.is_terminal
        target = Target(id=task.id, status=state.status, claim_token=state.claim_token)

        async def act(transaction: Transaction) -> bool:
            if is_cancelled:
                return bool(await operators.end_tasks(transaction, [target], CANCEL))
            return bool(await operators.requeue(transaction, [target], may_overlap=True))

        self._expect(f"C2 act on {task}", self._aging.run(self._aging.database.run(act)), is_as_shown)
        if is_as_shown:
            task.cancel(self._model.now) if is_cancelled else task.requeue(self._model.now)


def state_machine_for(aging: AgingDatabase) -> type[QueueStateMachine]:
    """A class without constructor arguments, as hypothesis needs it."""

    class BoundStateMachine(QueueStateMachine):
        def __init__(self) -> None:
            super().__init__(aging)

    return BoundStateMachine
