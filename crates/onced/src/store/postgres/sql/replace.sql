-- Replace a finished record that has expired: the key counts as unknown again. Expects zero or one row; zero means
-- that a rival is at work or was faster. Never waits. The steps of the old life go with it.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(onced.lock_id($1, $2)) AS got),
free AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced.idempotency_keys k, lock, t
     WHERE lock.got AND k.scope = $1 AND k.key = $2 AND k.status IN ('completed', 'failed')
       AND k.lease_token IS NOT DISTINCT FROM $13 AND k.expires_at <= t.now
       FOR UPDATE OF k SKIP LOCKED
), claimed AS (
    UPDATE onced.idempotency_keys k
       SET request_hash = $3, hash_version = $4, status = $5, attempt = 1, lease_token = $6,
           lease_until = t.now + $7 * interval '1 microsecond', downstream_key = $8,
           called_at = CASE WHEN $5 = 'pending_external' THEN t.now END,
           retry_window = $9 * interval '1 microsecond', created_at = t.now, updated_at = t.now,
           expires_at = t.now + $10 * interval '1 microsecond',
           response_code = NULL, response_headers = NULL, response_body = NULL, body_omitted = false,
           called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, error = NULL, completed_at = NULL
      FROM free, t
     WHERE k.scope = free.scope AND k.key = free.key AND k.status IN ('completed', 'failed')
       AND k.lease_token IS NOT DISTINCT FROM $13 AND k.expires_at <= t.now
    RETURNING k.scope, k.key, k.created_at, k.attempt, k.expires_at
), steps AS (
    DELETE FROM onced.idempotency_keys s USING claimed
     WHERE s.key = claimed.key AND s.scope > claimed.scope || '#' AND s.scope < claimed.scope || '$'
), logged AS (
    INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
    SELECT $11, scope, key, created_at, 'execute', $12, attempt FROM claimed WHERE $11 IS NOT NULL
)
SELECT lock.got, onced.micros(claimed.expires_at) AS expires_at, claimed.attempt
  FROM lock LEFT JOIN claimed ON true;
