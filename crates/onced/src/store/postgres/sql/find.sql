-- Read a record, the database's time, and whether the step of its outside call is recorded.
-- A statement of its own: only a new snapshot is sure to see the row that a claim ran into. A standby may be
-- behind, and sees nothing: what a key has come to is said by the primary.
SELECT k.request_hash, k.hash_version, k.status, k.attempt, k.lease_token, onced.micros(k.lease_until) AS lease_until,
       k.response_code, k.response_headers, k.response_body, k.body_omitted, k.downstream_key,
       onced.micros(k.called_at) AS called_at, onced.micros(k.called_until) AS called_until, k.probe_count,
       onced.micros(k.next_probe_at) AS next_probe_at, onced.micros(k.held_at) AS held_at, k.error,
       (extract(epoch FROM k.retry_window) * 1000000)::bigint AS retry_window,
       onced.micros(k.created_at) AS created_at, onced.micros(k.updated_at) AS updated_at,
       onced.micros(k.completed_at) AS completed_at, onced.micros(k.expires_at) AS expires_at,
       onced.micros(onced.clock()) AS now,
       s.response_code AS call_code, s.response_headers AS call_headers, s.response_body AS call_body,
       coalesce(s.body_omitted, false) AS call_omitted, s.key IS NOT NULL AS call_known
  FROM onced.idempotency_keys k
  LEFT JOIN onced.idempotency_keys s
    ON k.status = 'pending_external' AND s.scope = k.scope || '#call' AND s.key = k.key AND s.status = 'completed'
 WHERE k.scope = $1 AND k.key = $2 AND NOT pg_is_in_recovery();
