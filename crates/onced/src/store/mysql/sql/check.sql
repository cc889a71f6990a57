-- Prove that the ledger takes writes, as a claim writes: what locks the tables, sets them read-only or leaves them no
-- room is met here as well. Expects one row, and to be rolled back. A key of its own each time, so that instances that
-- ask at the same time do not wait for each other. Whoever asks waits for two seconds; by then the connection must be free
-- again.
SET STATEMENT lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, max_statement_time = 1.5 FOR
INSERT INTO onced_idempotency_keys
    (scope, `key`, request_hash, hash_version, status, attempt, retry_window, created_at, updated_at)
SELECT 'onced', UUID(), UNHEX(REPEAT('00', 32)), '', 'queued', 0, 0, t.now, t.now FROM onced_clock t;
