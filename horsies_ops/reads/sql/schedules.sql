-- name: states
-- Stored state of each schedule, and the status of its last task.
SELECT state.schedule_name AS name, state.next_run_at, state.next_run_at - now() AS due_in, state.last_run_at,
       state.last_task_id, task.status AS last_status, task.error_code AS last_error_code, state.run_count
  FROM horsies_schedule_state AS state
  LEFT JOIN horsies_tasks AS task ON task.id = state.last_task_id
 ORDER BY state.next_run_at, state.schedule_name;
