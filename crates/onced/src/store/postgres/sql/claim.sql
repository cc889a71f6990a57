-- Claim a key that has no record. Expects zero or one row; zero with the lock got means that there is a record.
-- Never waits for a rival: the lock is tried, not taken, and is got before the insert meets the unique constraint. A
-- record that is seen is not inserted upon: ON CONFLICT would wait for an owner that has written its outcome there and
-- not yet committed. What this snapshot is too old to see, ON CONFLICT catches.
-- The delivery's line commits with the claim.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(onced.lock_id($1, $2)) AS got),
claimed AS (
    INSERT INTO onced.idempotency_keys
        (scope, key, request_hash, hash_version, status, attempt, lease_token, lease_until, downstream_key, called_at,
         retry_window, created_at, updated_at, expires_at)
    SELECT $1, $2, $3, $4, $5, 1, $6, t.now + $7 * interval '1 microsecond', $8,
           CASE WHEN $5 = 'pending_external' THEN t.now END,
           $9 * interval '1 microsecond', t.now, t.now, t.now + $10 * interval '1 microsecond'
      FROM t, lock
     WHERE lock.got AND NOT EXISTS (SELECT FROM onced.idempotency_keys k WHERE k.scope = $1 AND k.key = $2)
    ON CONFLICT (scope, key) DO NOTHING
    RETURNING scope, key, created_at, attempt, expires_at
), logged AS (
    INSERT INTO onced.deliveries (id, scope, key, received_at, decision, request_hash, attempt)
    SELECT $11, scope, key, created_at, 'execute', $3, attempt FROM claimed WHERE $11 IS NOT NULL
)
SELECT lock.got, onced.micros(claimed.expires_at) AS expires_at, claimed.attempt
  FROM lock LEFT JOIN claimed ON true;
