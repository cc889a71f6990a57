-- Claim a key that has no record. Expects one row, or the error 1062: there is a record by now. Never waits for a rival: 1205
-- at once means that a rival's insert is not committed yet. Strict, whatever the session is: nothing is cut to fit.
SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
INSERT INTO onced_idempotency_keys
    (scope, `key`, request_hash, hash_version, status, attempt, lease_token, lease_until, downstream_key, called_at,
     retry_window, created_at, updated_at, expires_at)
SELECT ?, ?, ?, ?, ?, 1, ?, t.now + INTERVAL ? MICROSECOND, ?, CASE WHEN ? = 'pending_external' THEN t.now END,
       ?, t.now, t.now, t.now + INTERVAL ? MICROSECOND
  FROM onced_clock t
RETURNING attempt, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at;
