-- Claim a key that has no record. Expects zero or one row; zero with the lock got means that there is a record.
-- Never waits for a rival: the lock is tried, not taken, and is got before the insert meets the unique constraint. A
-- record that is seen is not inserted upon: ON CONFLICT would wait for an owner that has written its outcome there and
-- not yet committed. What this snapshot is too old to see, ON CONFLICT catches.
-- The delivery's line commits with the claim.
-- In a caller's transaction $12 is the lease, and bounds the transaction from here on where it has no bounds: there is
-- no lease to save anyone from an owner that hangs inside it. A tighter bound of the caller's own stays.
WITH lock AS MATERIALIZED (
    SELECT onced.clock() AS now, pg_try_advisory_xact_lock(onced.lock_id($1, $2)) AS got,
           CASE WHEN $12 IS NOT NULL AND current_setting('idle_in_transaction_session_timeout')::interval
                                         NOT BETWEEN interval '1 ms' AND $12 * interval '1 microsecond'
                THEN set_config('idle_in_transaction_session_timeout', ($12 / 1000)::text, true) END,
           CASE WHEN $12 IS NOT NULL AND current_setting('statement_timeout')::interval = interval '0'
                THEN set_config('statement_timeout', ($12 / 1000)::text, true) END
), claimed AS (
    INSERT INTO onced.idempotency_keys
        (scope, key, request_hash, hash_version, status, attempt, lease_token, lease_until, downstream_key, called_at,
         retry_window, created_at, updated_at, expires_at)
    SELECT $1, $2, $3, $4, $5, 1, $6, lock.now + $7 * interval '1 microsecond', $8,
           CASE WHEN $5 = 'pending_external' THEN lock.now END,
           $9 * interval '1 microsecond', lock.now, lock.now, lock.now + $10 * interval '1 microsecond'
      FROM lock
     WHERE lock.got AND NOT EXISTS (SELECT FROM onced.idempotency_keys k WHERE k.scope = $1 AND k.key = $2)
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key, created_at, attempt, expires_at
), logged AS (
    INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
    SELECT $11, scope, key, created_at, 'execute', $3, attempt FROM claimed WHERE $11 IS NOT NULL
)
SELECT lock.got, onced.micros(claimed.expires_at) AS expires_at, claimed.attempt
  FROM lock LEFT JOIN claimed ON true;
