-- Mark a record that is out of attempts as failed. Expects zero or one row; zero means that a rival is at work or was
-- faster. Never waits. The token goes, so that its owner does not take the record for its own.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(onced.lock_id($1, $2)) AS got),
free AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced.idempotency_keys k, lock, t
     WHERE lock.got AND k.scope = $1 AND k.key = $2 AND k.status = 'in_progress' AND k.attempt = $3
       AND k.lease_token IS NOT DISTINCT FROM $4 AND k.lease_until <= t.now
       FOR UPDATE OF k SKIP LOCKED
)
UPDATE onced.idempotency_keys k
   SET status = 'failed', lease_token = NULL, lease_until = NULL, error = $5, updated_at = t.now,
       expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, t.now + k.retry_window) END
  FROM free, t
 WHERE k.scope = free.scope AND k.key = free.key AND k.status = 'in_progress' AND k.attempt = $3
   AND k.lease_token IS NOT DISTINCT FROM $4 AND k.lease_until <= t.now;
