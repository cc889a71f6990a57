-- Read a record, the database's time, and whether the step of its outside call is recorded.
-- A statement of its own: only a new snapshot is sure to see the row that a claim ran into. A server that takes no writes is
-- a replica, or a primary that was one, and sees nothing: what a key has come to is said by the primary.
-- Bounded whatever the session is: a change of the schema is waited for, and by a serializable reader a rival.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
SELECT k.request_hash, k.hash_version, k.status, k.attempt, k.lease_token,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.lease_until) AS lease_until,
       k.response_code, k.response_headers, k.response_body, k.body_omitted, k.downstream_key,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.called_at) AS called_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.called_until) AS called_until, k.probe_count,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.next_probe_at) AS next_probe_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.held_at) AS held_at, k.error, k.retry_window,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.created_at) AS created_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.updated_at) AS updated_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.completed_at) AS completed_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', k.expires_at) AS expires_at,
       TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', (SELECT now FROM onced_clock)) AS now,
       s.response_code AS call_code, s.response_headers AS call_headers, s.response_body AS call_body,
       COALESCE(s.body_omitted, 0) AS call_omitted, s.scope IS NOT NULL AS call_known
  FROM onced_idempotency_keys k
  LEFT JOIN onced_idempotency_keys s
    ON k.status = 'pending_external' AND s.scope = CONCAT(k.scope, '#call') AND s.`key` = k.`key`
   AND s.status = 'completed'
 WHERE k.scope = ? AND k.`key` = ? AND NOT @@GLOBAL.read_only;
