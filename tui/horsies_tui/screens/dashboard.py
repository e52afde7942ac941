"""Dashboard: what needs attention and the key that fixes it, counters, throughput, queues, workers, latest events."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from textual import events
from textual.app import ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from horsies_ops.reads.changes import Topic
from horsies_ops.reads.filters import TaskFilter
from horsies_ops.source import DataSource
from horsies_tui.data.context import AppContext
from horsies_tui.data.queries import LiveQuery
from horsies_tui.fleet import BUCKET_COUNT, HOUR, THROUGHPUT_WINDOW, count_alive, count_without_heartbeat, load_workers
from horsies_tui.format import fit, format_count, format_time, plural, sanitize
from horsies_tui.keys import ScreenId, first_key
from horsies_tui.screens.alerts import Alert, AlertInputs, RunTarget, Severity, UnservedQueue, find_alerts
from horsies_tui.screens.base import TASK_TOPICS, MainScreen, ShowRun, ShowTasks, ShowWorker
from horsies_tui.screens.entries import NO_ACTIONS, StreamEntry, short_log_line
from horsies_tui.screens.summary import (
    QUEUE_CHART_COLUMN,
    STYLES,
    Activity,
    chart_lines,
    counter_line,
    load_activity,
    queue_lines,
    worker_lines,
)
from horsies_tui.theme import Glyph
from horsies_tui.widgets.page import Pane
from horsies_tui.widgets.row_list import Cell, Column, Heading, RowList, Tone

if TYPE_CHECKING:
    from horsies_ops.reads.events import AuditRow
    from horsies_ops.reads.overview import Overview, QueueBucket
    from horsies_ops.reads.tasks import TaskSummary
    from horsies_ops.reads.workflows import WorkflowRow
    from horsies_tui.proposals.model import ProposalFactory
    from horsies_tui.screens.events import EventStream

MAX_ACTIONS: Final = 20
MAX_EVENTS: Final = 60
MAX_NOTABLE: Final = 4
NOTABLE_AGE: Final = timedelta(minutes=2)
"""So long, recoveries and lost workers stay above the other events."""
MAX_RUNS: Final = 50
WIDE: Final = 100
"""Columns from which the chart is beside the alerts and the tables are shown."""
FAILED_RUN_AGE: Final = timedelta(days=1)
"""Runs that failed longer ago need no attention."""
HEALTHY: Final = "no problems: no stale task, every queue is served in time, workers send heartbeats, no run failed"

_SIGNS: Final = {Severity.BAD: Cell("", Tone.BAD, glyph=Glyph.BAD), Severity.WARN: Cell("!", Tone.WARN)}
_TONES: Final = {Severity.BAD: Tone.BAD, Severity.WARN: Tone.PLAIN}


def alert_columns(keys: Mapping[str, str]) -> tuple[Column[Alert], ...]:
    """The columns of the alerts; `keys` are the user's keys by action id."""

    def key_cell(alert: Alert) -> Cell:
        key = first_key(f"op.{alert.verb}", keys) if alert.verb else Glyph.ENTER
        return Cell(f"{key} {alert.label}", Tone.BUSY)

    return (
        Column("", 1, lambda alert: _SIGNS[alert.severity]),
        Column("", 40, lambda alert: Cell(alert.text, _TONES[alert.severity]), grows=1),
        Column("", 9, key_cell),
    )


def event_line(entry: StreamEntry | Heading) -> Content:
    if isinstance(entry, Heading):
        return Content.styled(sanitize(entry.text), "dim")
    subject = f" {fit(entry.kind, 6)} {fit(entry.subject, 24)} "
    note = f"  {entry.headline}" if entry.headline else ""
    # The kind has its own column: "worker … lost", not "worker … worker lost".
    summary = (sanitize(entry.summary.removeprefix(f"{entry.kind} ")), STYLES[entry.tone])
    return Content.assemble((format_time(entry.at), "dim"), subject, summary, (sanitize(note), "dim"))


async def load_runs(source: DataSource) -> tuple[WorkflowRow, ...]:
    """Return the paused runs and those that failed lately, newest first."""
    # Imported late: it imports the database driver, which the first screen must not wait for.
    from horsies_ops.reads.workflows import WorkflowFilter

    page = await source.list_workflows(WorkflowFilter(statuses=("FAILED", "PAUSED"), root_only=True), limit=MAX_RUNS)
    return tuple(run for run in page.workflows if run.status == "PAUSED" or run.age < FAILED_RUN_AGE)


def alert_proposal(alert: Alert | None, verb: str, context: AppContext) -> ProposalFactory | None:
    """Return what the action `op.VERB` proposes for an alert; None if it does not fix it."""
    from horsies.model.recovery.fleet import SweepOptions  # late: see load_runs
    from horsies_tui.proposals.model import propose_queue_pause_toggle, propose_run_action
    from horsies_tui.proposals.sweep import propose_sweep

    if verb == "sweep":
        return partial(propose_sweep, options=SweepOptions())
    match alert:
        case Alert(target=UUID() as worker_id) if verb == "requeue":
            return partial(propose_sweep, options=SweepOptions(worker_id=worker_id))
        case Alert(target=RunTarget(workflow_id)) if verb == alert.verb:
            return partial(propose_run_action, verb=verb, workflow_id=workflow_id)
        case Alert(target=TaskFilter(queues=(name,))) if verb == alert.verb:
            return partial(propose_queue_pause_toggle, name=name, now=context.clock.now())
        case _:
            return None


class DashboardScreen(MainScreen, scope=ScreenId.DASHBOARD):
    """Alerts in a box; the chart beside or, in narrow terminals, below them; then tables and the latest events."""

    # Refresh the counts often here; the other screens use the overview only for the number of stale tasks in the tabs.
    overview_min_interval_s = 1.0

    def __init__(self, context: AppContext) -> None:
        super().__init__(context)
        columns = alert_columns(context.settings.keys)
        self.list: RowList[Alert] = RowList(
            columns, key=lambda alert: alert.key, context=context, follows_top=True, has_titles=False
        )
        self._alert_inputs = AlertInputs()
        self._missing_results = {"overview", "stale", "workers", "errors", "runs", "throughput"}
        """Queries that the alerts need and that have not returned yet."""
        self._overview: Overview | None = None
        self._activity: Activity | None = None
        self._queue_throughput: tuple[QueueBucket, ...] = ()
        self._known_tasks: Mapping[UUID, TaskSummary] = {}

    def body(self) -> ComposeResult:
        with Container(id="overview"):
            with Vertical(id="attention-and-counters"):
                with Vertical(id="attention"):
                    yield self.list
                    yield Static(Content.styled(f" {Glyph.DONE} {HEALTHY}", STYLES[Tone.GOOD]), id="healthy")
                yield Pane(name="counters")
            yield Pane("Last 30 min", name="throughput")
        with Horizontal(id="tables"):
            yield Pane("Queues", name="queues")
            yield Pane("Workers", name="workers")
        with Horizontal(id="latest"):
            yield Pane("Latest events", name="events")
            yield Pane("Recent operator actions", name="operator-actions")

    def live_queries(self) -> Sequence[LiveQuery[Any]]:
        topics = TASK_TOPICS | {Topic.HEARTBEATS, Topic.EVENT}
        return (
            LiveQuery(
                "stale",
                lambda source: source.stale_candidates(),
                lambda report: self._show_alerts("stale", stale=report),
                topics,
                min_interval_s=5.0,
            ),
            LiveQuery(
                "workers",
                load_workers,
                lambda workers: self._show_alerts("workers", workers=workers),
                topics,
                poll_s=5.0,
                min_interval_s=2.0,
            ),
            LiveQuery(
                "errors",
                lambda source: source.error_summary(HOUR),
                lambda errors: self._show_alerts("errors", errors=errors),
                TASK_TOPICS,
                min_interval_s=10.0,
            ),
            LiveQuery(
                "runs",
                load_runs,
                lambda runs: self._show_alerts("runs", runs=runs),
                frozenset({Topic.WORKFLOW, Topic.EVENT}),
                min_interval_s=2.0,
            ),
            LiveQuery("throughput", load_activity, self._show_activity, TASK_TOPICS, min_interval_s=3.0),
            LiveQuery(
                "queue throughput",
                self._fetch_queue_throughput,
                self._show_queue_throughput,
                TASK_TOPICS,
                min_interval_s=5.0,
            ),
            LiveQuery("events", self._fetch_events, self._show_events, topics | {Topic.WORKFLOW}, min_interval_s=1.0),
            LiveQuery(
                "audit", lambda source: source.audit(limit=MAX_ACTIONS), self._show_actions, topics, min_interval_s=2.0
            ),
        )

    async def _fetch_queue_throughput(self, source: DataSource) -> tuple[QueueBucket, ...]:
        # Skip the query while the terminal is too narrow for its chart.
        if self.size.width < WIDE:
            return ()
        return await source.queue_throughput(THROUGHPUT_WINDOW, BUCKET_COUNT)

    async def _fetch_events(self, source: DataSource) -> EventStream:
        from horsies_tui.screens.events import load_event_stream  # late: see load_runs

        log, clock = self.context.queries.change_log, self.context.clock
        return await load_event_stream(source, log, clock, self._known_tasks, limit=MAX_EVENTS)

    def show_overview(self, overview: Overview) -> None:
        super().show_overview(overview)
        self._overview = overview
        self._show_alerts("overview", overview.at, queues=overview.queues, failed=overview.failed_last_hour)

    def _show_activity(self, activity: Activity) -> None:
        self._activity = activity
        self._show_alerts("throughput", idle=activity.idle_time(self.context.clock.now()))

    def _show_queue_throughput(self, buckets: tuple[QueueBucket, ...]) -> None:
        self._queue_throughput = buckets
        self._draw()

    def _show_events(self, stream: EventStream) -> None:
        from horsies_tui.screens.events import fold_entries  # late: see load_runs

        self._known_tasks = stream.known_tasks
        # Above the stream of task changes, in which they would be visible for a moment only.
        since = self.context.clock.now() - NOTABLE_AGE
        notable = [entry for entry in stream.entries if entry.headline and entry.at > since][:MAX_NOTABLE]
        entries = [*notable, *fold_entries(entry for entry in stream.entries if entry not in notable)]
        self.show_pane(
            "events",
            lambda: (
                [event_line(entry) for entry in entries]
                or ["no events yet; sends, finished tasks and recoveries appear here"]
            ),
        )

    def _show_actions(self, rows: tuple[AuditRow, ...]) -> None:
        self.show_pane("operator-actions", lambda: [short_log_line(row) for row in reversed(rows)] or [NO_ACTIONS])

    def _show_alerts(self, query: str, read_at: datetime | None = None, **inputs: Any) -> None:
        """Draw the alerts with the result of another query."""
        read_at = read_at or self.context.clock.now()
        times = {**self._alert_inputs.read_at, **dict.fromkeys(inputs, read_at)}
        self._alert_inputs = replace(self._alert_inputs, read_at=times, **inputs)
        self._missing_results.discard(query)
        self._draw()
        self._fit_attention()

    def _fit_attention(self) -> None:
        """Fit the box to the alerts, leaving room for what is below it."""
        alerts, box = self.list.rows, self.query_one("#attention", Vertical)
        counts = Counter(alert.severity for alert in alerts)
        parts = [
            f"{Glyph.BAD} {plural(counts[Severity.BAD], 'error')}" if counts[Severity.BAD] else "",
            f"! {plural(counts[Severity.WARN], 'warning')}" if counts[Severity.WARN] else "",
        ]
        title = "   ".join(["Needs attention", *filter(None, parts)])
        if box.border_title != title:
            box.border_title = title
        is_healthy = not alerts and not self._missing_results
        self.list.display, self.query_one("#healthy").display = not is_healthy, is_healthy
        # Of a terminal with 24 lines: frame 4, border 2, counters 1, chart 6, events 3.
        most = max(self.size.height - (10 if self.has_class("-short") else 16), 3)
        is_wide = self.size.width >= WIDE
        box.styles.height = "1fr" if is_wide else min(max(len(alerts), 1), most) + 2
        hidden = len(alerts) - (self.list.page_size if is_wide else most)
        subtitle = f"{hidden} more, G goes to the last" if hidden > 0 else ""
        if box.border_subtitle != subtitle:
            box.border_subtitle = subtitle

    def on_resize(self, _: events.Resize) -> None:
        if self.is_drawn:
            self._fit_attention()
            self._draw()

    def _draw(self) -> None:
        self.tick()
        self._update_status()

    def tick(self) -> None:
        now, overview, workers = self.context.clock.now(), self._overview, self._alert_inputs.workers
        # Shown with partial results, the list would put the cursor on the first alert to arrive, not the top one.
        if not self._missing_results:
            count = len(self.list.rows)
            self.list.show(find_alerts(self._alert_inputs.at(now)))
            if len(self.list.rows) != count:
                self._fit_attention()
        if overview is None:
            return
        is_wide = self.size.width >= WIDE
        self.show_pane("counters", lambda: [counter_line(overview, self.query_one("#counters").size.width)])
        if (activity := self._activity) is not None:
            pane = self.query_one("#throughput", Pane)
            # Beside the alerts: the box without axis, failures and four figures. Below them: see the stylesheet.
            size = {"rows": max(pane.content_size.height - 6, 3), "zoom": 2 if pane.content_size.width > 66 else 1}
            size = size if is_wide else {"rows": 3, "zoom": 1}
            lines = partial(chart_lines, activity, overview, workers, **size, is_beside=not is_wide)
            self.show_pane("throughput", lines, title=activity.title)
        rows = self.query_one("#tables").size.height - 2
        if rows > 0:
            # No more points than fit: the newest are at the right end, which would be cut.
            width = self.query_one("#queues").content_size.width
            points = max(min(width - QUEUE_CHART_COLUMN, BUCKET_COUNT), 0)
            queues = partial(queue_lines, overview, self._queue_throughput, now, rows=rows, points=points)
            self.show_pane("queues", queues)
            self.show_pane("workers", partial(worker_lines, workers, now, rows))

    def _update_status(self) -> None:
        if (overview := self._overview) is None:
            return
        workers = self._alert_inputs.workers
        others = "".join(f" {count} {state}" for state, count in count_without_heartbeat(workers))
        runs = overview.workflows.get("RUNNING")
        self.set_status(
            "" if self.list.rows or self._missing_results else "no problems",
            plural(len(overview.queues), "queue"),
            f"workers {count_alive(workers)} up{others}",
            ""
            if runs is None or not runs.number
            else f"workflows {format_count(runs.number, is_capped=runs.is_capped)} running",
            f"data as of {format_time(overview.at)}",
        )

    def on_row_list_cursor_moved(self) -> None:
        """Label `R` by the alert: recover the tasks of a worker, or retry a run."""
        alert = self._alert_with("requeue")
        self.set_label("op.requeue", "recover" if alert is None else alert.label)

    def _alert_with(self, verb: str) -> Alert | None:
        """The alert that `op.VERB` fixes: the one under the cursor, else the most severe one."""
        current = self.list.current
        return next((alert for alert in (current, *self.list.rows) if alert is not None and alert.verb == verb), None)

    def on_row_list_opened(self) -> None:
        """Show the tasks, the worker or the run behind the alert, or how to fix it."""
        match self.list.current:
            case Alert(target=TaskFilter() as task_filter):
                self.post_message(ShowTasks(task_filter))
            case Alert(target=UUID() as worker_id):
                self.post_message(ShowWorker(worker_id))
            case Alert(target=RunTarget(workflow_id)):
                self.post_message(ShowRun(workflow_id))
            case Alert(target=UnservedQueue(queue)):
                command = f"horsies worker APP --queues {shlex.quote(sanitize(queue))}"
                self.notify(f"start a worker that serves it: {command}", timeout=20, markup=False)
            case _:
                return

    def proposal(self, verb: str) -> ProposalFactory | None:
        """A sweep, or what fixes the alert with this key."""
        return alert_proposal(self._alert_with(verb), verb, self.context)

    def action_op(self, verb: str) -> None:
        from horsies_tui.screens.lists import ProposalRunner  # late: see load_runs

        if not hasattr(self, "proposals"):
            self.proposals = ProposalRunner(self)
        if (alert := self._alert_with(verb)) is not None:
            # The cursor shows what the preview is about.
            self.list.move_to(self.list.selection.index_of(alert.key) or 0)
        if self.proposal(verb) is None:
            self.notify("no line has this key")
        else:
            super().action_op(verb)
