-- Take an existing record for the next attempt. Expects zero or one row; zero means that a rival is at work or was
-- faster. Repeats all that was decided on: status, attempt, token, and the time at which it became free.
-- Never waits: the claim lock is tried, and a row that a rival has locked is skipped.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(onced.lock_id($1, $2)) AS got),
free AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced.idempotency_keys k, lock, t
     WHERE lock.got AND k.scope = $1 AND k.key = $2 AND k.status = $3 AND k.attempt = $4
       AND k.lease_token IS NOT DISTINCT FROM $5 AND (NOT $6 OR k.lease_until <= t.now)
       FOR UPDATE OF k SKIP LOCKED
), taken AS (
    UPDATE onced.idempotency_keys k
       SET status = $7, attempt = $4 + 1, lease_token = $8, lease_until = t.now + $9 * interval '1 microsecond',
           downstream_key = coalesce(k.downstream_key, $10),
           called_at = CASE WHEN $7 = 'pending_external' THEN coalesce(k.called_at, t.now) ELSE k.called_at END,
           called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, completed_at = NULL,
           updated_at = t.now
      FROM free, t
     WHERE k.scope = free.scope AND k.key = free.key AND k.status = $3 AND k.attempt = $4
       AND k.lease_token IS NOT DISTINCT FROM $5 AND (NOT $6 OR k.lease_until <= t.now)
    RETURNING k.scope, k.key, k.updated_at, k.attempt, k.expires_at
), logged AS (
    INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
    SELECT $11, scope, key, updated_at, 'execute', $12, attempt FROM taken WHERE $11 IS NOT NULL
)
SELECT lock.got, onced.micros(taken.expires_at) AS expires_at, taken.attempt
  FROM lock LEFT JOIN taken ON true;
