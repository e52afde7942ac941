"""A state machine that does to tasks and workers whatever can be done to them, in any order, on the real statements."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from horsies.codec.ids import IDS
from horsies.model.recovery.fleet import OperatorJudge, SweepOptions
from horsies.model.retention import Windows
from horsies.model.send import SendOutcome
from horsies.model.task import TaskStatus
from horsies.model.task_result import OutcomeCode, TaskError
from horsies.recovery.retention import clean
from horsies.recovery.sweep import sweep
from horsies.store import operators
from horsies.store.claims import Hold
from horsies.store.operators import End, Target
from horsies.store.tasks import QUEUES as QUEUE_QUERIES
from horsies.store.tasks import TaskStore
from tests.support.simulated_workers import (
    MOST_UNFINISHED,
    PLANS,
    RECOVERY,
    TICK_S,
    Blow,
    Condition,
    Phase,
    Plan,
    Puppet,
    Word,
)
from tests.support.task_model import (
    CLAIMED,
    OK,
    RUNNING,
    SHUTDOWN,
    WINDOW,
    WISHES,
    Chronicle,
    Life,
    Standing,
    Wish,
    payload_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hypothesis.strategies import SearchStrategy

    from horsies.store.database import Transaction
    from tests.support.simulated_workers import Stage

T = TypeVar("T")

FEWEST_AWAKE: Final = 2
ROUNDS_TO_THE_END: Final = 2
"""In the first one whatever the dead held is taken from them; in the second it is all due."""
BY_HAND: Final = OperatorJudge(local=RECOVERY)
PLAIN_AGES: Final = SweepOptions(force=True)
OLD: Final = timedelta(seconds=WINDOW * TICK_S)
WINDOWS: Final = Windows(heartbeats=OLD, worker_states=OLD, terminal_records=OLD)
CANCEL: Final = End(
    kind="cancel",
    status=TaskStatus.CANCELLED,
    error=TaskError(error_code=OutcomeCode.TASK_CANCELLED, message="by an operator"),
)

OPERATOR: Final = "an operator"
Judge: TypeAlias = "Puppet | Literal['an operator']"


def one_of(listed: Callable[[RandomLives], Sequence[T]]) -> SearchStrategy[T]:
    """One of what the machine has just now; the rule needs a precondition that it has any."""
    machine = cast("SearchStrategy[RandomLives]", st.runner())
    return machine.flatmap(lambda each: st.sampled_from(listed(each)))


class RandomLives(RuleBasedStateMachine):
    """Every rule asks something of the queue and writes down what must have come of it; the tables are then compared.

    What the queue answers is compared as well, and told together with what is wrong in the tables. The rules are few
    and broad, for in each example some are left out.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
        self._book = Chronicle()
        self._workers: list[Puppet] = []
        self._surprises: list[str] = []
        self._is_sound = True
        stage.run(stage.clear())

    @property
    def awake(self) -> list[Puppet]:
        return self._in(Condition.AWAKE)

    @property
    def alive(self) -> list[Puppet]:
        return [*self.awake, *self._in(Condition.STANDING_STILL)]

    @property
    def turns(self) -> list[tuple[Puppet, Hold | None]]:
        """What may go on: a worker with one of the tasks in its hands, or with a claim."""
        return [(worker, hold) for worker in self.awake for hold in (*worker.held, None)]

    @property
    def shown(self) -> list[tuple[Life, Standing]]:
        """Tasks as an operator may have them before his eyes: as they are, or as they were before."""
        return [(life, standing) for life in self._book.lives.values() for standing in life.shown[-2:]]

    @initialize(plans=st.tuples(PLANS, PLANS))
    def begin_at_work(self, plans: tuple[Plan, Plan]) -> None:
        self._replace_the_dead()
        for worker, plan in zip(self.awake, plans, strict=True):
            self.work((worker, None), plan)

    @rule(wish=WISHES, times=st.integers(1, 2))
    def send(self, wish: Wish, times: int) -> None:
        """Once, or again because nobody heard the answer."""
        self._send(wish, times)

    @rule(turn=one_of(lambda self: self.turns), plan=PLANS)
    def work(self, turn: tuple[Puppet, Hold | None], plan: Plan) -> None:
        """A worker claims; or what it has claimed starts, what has started begins, what has begun ends."""
        worker, hold = turn
        if hold is None:
            self._send(plan.wish)
            self._claim(worker, plan)
        elif plan.gives_up and worker.held[hold] is not Phase.BEGUN:
            self._put_back(worker, hold)
        elif worker.held[hold] is Phase.CLAIMED:
            self._start(worker, hold, plan.phase)
        elif worker.held[hold] is Phase.HANDED:
            self._hand(worker, hold, Phase.BEGUN)
        else:
            self._finish(worker, hold, plan.code, plan.times)

    @rule(ticks=st.integers(0, 2), judge=one_of(lambda self: [None, OPERATOR, *self.awake]), cleans=st.booleans())
    def wait(self, ticks: int, judge: Judge | None, cleans: bool) -> None:
        """Time passes, for those as well who stand still; then somebody may look after the dead."""
        for _ in range(ticks):
            self._tick()
        if judge is not None:
            self._reap(judge)
        if cleans:
            self._stage.run(clean(self._stage.database, WINDOWS, budget_s=None))
            self._book.forget_the_old()

    @rule(worker=one_of(lambda self: self.alive), blow=st.sampled_from(Blow))
    def strike(self, worker: Puppet, blow: Blow) -> None:
        """Whoever stands still already goes on, or is killed."""
        match worker.condition, blow:
            case Condition.AWAKE, Blow.STAND_STILL:
                worker.condition = Condition.STANDING_STILL
            case Condition.AWAKE, Blow.STOP:
                self._stop(worker)
            case _, Blow.KILL:
                self._kill(worker)
            case _:
                self._go_on(worker)
        self._replace_the_dead()

    @rule(
        worker=one_of(lambda self: self.awake),
        ticks=st.integers(1, 4),
        judge=one_of(lambda self: [OPERATOR, OPERATOR, OPERATOR, None, *self.awake]),
        plan=PLANS,
    )
    def cut_off(self, worker: Puppet, ticks: int, judge: Judge | None, plan: Plan) -> None:
        """A worker at work is not heard for a while, others may take over, and it is back as if nothing had been."""
        if not worker.held:
            self.work((worker, None), plan)
        worker.condition = Condition.STANDING_STILL
        for _ in range(ticks):
            self._tick()
        if judge is not None and judge is not worker:
            self._reap(judge)
            self._tick()
            self.work((self.awake[0], None), plan)
        self._go_on(worker)
        for hold in list(worker.held):
            self.work((worker, hold), plan)

    @precondition(lambda self: self.shown)
    @rule(seen=one_of(lambda self: self.shown), word=st.sampled_from(Word))
    def operate(self, seen: tuple[Life, Standing], word: Word) -> None:
        """A pause lasts until the next word."""
        life, standing = seen
        self._resume()
        if word is Word.PAUSE:
            self._pause(life.wish.queue)
        else:
            self._act(life, standing, is_cancelled=word is Word.CANCEL)

    @invariant()
    def every_promise_is_kept(self) -> None:
        faults = [*self._book.faults(self._stage.run(self._stage.tables())), *self._surprises]
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
            self._claim(heir, Plan())
            for hold in list(heir.held):
                self._finish(heir, hold, OK, times=1)
            self.every_promise_is_kept()
        assert not self._book.unfinished, f"C1 {self._book.unfinished} will never end"

    def _in(self, condition: Condition) -> list[Puppet]:
        return [worker for worker in self._workers if worker.condition is condition]

    def _expect(self, what: str, told: object, expected: object) -> None:
        if told != expected:
            self._surprises.append(f"{what}: {told}, not {expected}")

    def _held(self, hold: Hold, status: TaskStatus) -> Life | None:
        """The task, where it is really held so."""
        life = self._book.lives.get(hold.task_id)
        return life if life is not None and life.is_held(hold, status) else None

    def _hand(self, worker: Puppet, hold: Hold, phase: Phase) -> None:
        worker.held[hold] = phase
        if phase is Phase.BEGUN:
            self._surprises += self._book.begin(hold)

    def _drop(self, worker: Puppet, hold: Hold) -> None:
        worker.held.pop(hold)
        self._book.leave_off(hold)

    def _send(self, wish: Wish, times: int = 1) -> None:
        if len(self._book.unfinished) == MOST_UNFINISHED:
            return
        task_id = IDS.next()
        payload = payload_of(str(task_id), wish, tick_s=TICK_S)
        sent = [self._stage.run(TaskStore(self._stage.database).enqueue(payload)).outcome for _ in range(times)]
        self._expect("C1 sent", sent, [SendOutcome.STORED, SendOutcome.REPEATED][:times])
        self._book.accept(task_id, wish)

    def _claim(self, worker: Puppet, plan: Plan) -> None:
        due, is_only_claimed = self._book.claimable(), plan.phase is Phase.CLAIMED
        rows = self._stage.run(worker.claim(plan.count, starts=not is_only_claimed, has_lease=plan.has_lease))
        self._expect("C1 claimed", len(rows), min(plan.count, len(due)))
        for row in rows:
            life = self._book.lives[row.id]
            came_as = CLAIMED if is_only_claimed or life.status is CLAIMED else RUNNING
            told = (life in due, row.status, row.claim_token, row.overlap_possible)
            self._expect(f"C2 claim of {life}", told, (True, came_as, life.token + 1, life.may_overlap))
            hold = Hold(task_id=row.id, claim_token=row.claim_token, worker_id=worker.ids[-1])
            life.claim(hold, came_as, self._book.now, has_lease=plan.has_lease)
            if plan.is_heard:
                self._hand(worker, hold, Phase.CLAIMED if came_as is CLAIMED else plan.phase)

    def _put_back(self, worker: Puppet, hold: Hold) -> None:
        phase = worker.held[hold]
        life = self._held(hold, CLAIMED if phase is Phase.CLAIMED else RUNNING)
        self._expect(f"C2 return of {life}", self._stage.run(worker.put_back(hold, phase)), life is not None)
        if life is not None:
            life.put_back(self._book.now)
        self._drop(worker, hold)

    def _start(self, worker: Puppet, hold: Hold, phase: Phase) -> None:
        life = self._held(hold, CLAIMED)
        may_start = life is not None and life.may_start(self._book.now)
        self._expect(f"C2 start of {life}", self._stage.run(worker.start(hold)), may_start)
        if life is not None and may_start:
            life.start(self._book.now)
            self._hand(worker, hold, phase)
            return
        is_late = life is not None and life.good_until <= self._book.now
        self._expect(f"C2 expiry of {life}", self._stage.run(worker.expire(hold)), is_late)
        if life is not None and is_late:
            life.expire(self._book.now)
            self._drop(worker, hold)

    def _finish(self, worker: Puppet, hold: Hold, code: str, times: int) -> None:
        """Once, or again because nobody heard the answer."""
        for _ in range(times):
            life = self._held(hold, RUNNING)
            asks_again = hold.task_id in self._book.lives and code in self._book.lives[hold.task_id].wish.codes
            is_taken = self._stage.run(worker.finish(hold, code, asks_again=asks_again))
            self._expect(f"C2 end of {life}", is_taken, life is not None)
            if life is not None:
                life.finish(code, self._book.now)
        self._drop(worker, hold)

    def _tick(self) -> None:
        """Whoever is awake beats, and gives back what it never heard of."""
        self._stage.run(self._stage.age())
        self._book.now += 1
        for worker in self.awake:
            self._stage.run(worker.beat_for_itself(self._book.now))
            self._beat(worker)
            self._reconcile(worker)

    def _reap(self, judge: Judge) -> None:
        """By a worker, as far as it has listened, or by an operator who goes by plain ages."""
        by, options = (BY_HAND, PLAIN_AGES) if judge == OPERATOR else (judge.judge(self._book.now), SweepOptions())
        report = self._stage.run(sweep(self._stage.database, options, judge=by))
        settled = self._book.sweep(-inf if judge == OPERATOR else judge.listens_since)
        self._expect("C6 swept", {task.task_id for task in report.tasks if task.applied}, settled)

    def _beat(self, worker: Puppet) -> None:
        for hold, is_held in self._stage.run(worker.beat()).items():
            life = self._held(hold, CLAIMED if worker.held[hold] is Phase.CLAIMED else RUNNING)
            self._expect(f"C2 beat for {life}", is_held, life is not None)
            if life is not None:
                life.beat(self._book.now)
            else:
                self._drop(worker, hold)

    def _reconcile(self, worker: Puppet) -> None:
        unheard = [life for life in self._book.held_by(worker.ids) if life.hold not in worker.held]
        given_back = self._stage.run(worker.reconcile())
        self._expect("C5 given back", set(given_back), {life.hold for life in unheard})
        for life in unheard:
            life.put_back(self._book.now)

    def _replace_the_dead(self) -> None:
        while len(self.awake) < FEWEST_AWAKE:
            worker = Puppet(self._stage.database, number=len(self._workers) + 1)
            self._workers.append(worker)
            self._stage.run(worker.join(self._book.now))

    def _go_on(self, worker: Puppet) -> None:
        """With everything that it had in hand; it hears only with its next beat what is no longer its own."""
        worker.condition = Condition.AWAKE
        worker.listens_since = self._book.now
        self._stage.run(worker.beat_for_itself(self._book.now))

    def _kill(self, worker: Puppet) -> None:
        worker.condition = Condition.DEAD
        for hold in list(worker.held):
            self._drop(worker, hold)

    def _stop(self, worker: Puppet) -> None:
        """In good order, but for what it never heard of."""
        for hold, phase in list(worker.held.items()):
            if phase is Phase.BEGUN:
                self._finish(worker, hold, SHUTDOWN, times=1)
            else:
                self._put_back(worker, hold)
        self._stage.run(worker.say_that_it_stopped())
        self._book.stopped |= set(worker.ids)
        worker.condition = Condition.DEAD

    def _pause(self, queue: str) -> None:
        self._stage.run(self._stage.database.fetch(QUEUE_QUERIES.pause, queue, OPERATOR, None))
        self._book.paused.add(queue)

    def _resume(self) -> None:
        for queue in self._book.paused:
            self._stage.run(self._stage.database.fetch(QUEUE_QUERIES.resume, queue))
        self._book.paused.clear()

    def _act(self, life: Life, standing: Standing, *, is_cancelled: bool) -> None:
        """Nothing happens to a task that has moved since it was shown."""
        is_as_shown = life.shown[-1] == standing and not life.status.is_terminal
        target = Target(id=life.id, status=standing.status, claim_token=standing.claim_token)

        async def moved(transaction: Transaction) -> bool:
            if is_cancelled:
                return bool(await operators.finish(transaction, [target], CANCEL))
            return bool(await operators.put_back(transaction, [target], may_overlap=True))

        self._expect(f"C2 act on {life}", self._stage.run(self._stage.database.run(moved)), is_as_shown)
        if is_as_shown:
            life.cancel(self._book.now) if is_cancelled else life.requeue(self._book.now)


def lives_on(stage: Stage) -> type[RandomLives]:
    """The machine as hypothesis wants it: a class that it makes itself, once for each example."""

    class LivesOnStage(RandomLives):
        def __init__(self) -> None:
            super().__init__(stage)

    return LivesOnStage
