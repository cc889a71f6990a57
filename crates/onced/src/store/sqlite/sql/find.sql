-- Read a record, the database's time, and whether the step of its outside call is recorded.
SELECT k.request_hash, k.hash_version, k.status, k.attempt, k.lease_token, k.lease_until,
       k.response_code, k.response_headers, k.response_body, k.body_omitted, k.downstream_key, k.called_at,
       k.called_until, k.probe_count, k.next_probe_at, k.held_at, k.error, k.retry_window, k.created_at, k.updated_at,
       k.completed_at, k.expires_at, t.now AS now,
       s.response_code AS call_code, s.response_headers AS call_headers, s.response_body AS call_body,
       coalesce(s.body_omitted, 0) AS call_omitted, s.key IS NOT NULL AS call_known
  FROM onced_clock t, onced_idempotency_keys k
  LEFT JOIN onced_idempotency_keys s
    ON k.status = 'pending_external' AND s.scope = k.scope || '#call' AND s.key = k.key AND s.status = 'completed'
 WHERE k.scope = ?1 AND k.key = ?2;
