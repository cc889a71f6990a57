-- Extend the lease. Expects exactly one row; zero means that the claim was lost, or that the record has ended.
-- Never waits: an app that is slow to commit its ending holds the row, and must not hold our connections as well.
SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 5 FOR
UPDATE onced_idempotency_keys
   SET lease_until = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND, updated_at = (SELECT now FROM onced_clock)
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status IN ('in_progress', 'pending_external');
