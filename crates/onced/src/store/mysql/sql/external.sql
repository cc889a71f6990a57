-- Announce an outside call, and set the lease anew. Expects exactly one row; zero means that the claim was lost.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
UPDATE onced_idempotency_keys
   SET status = 'pending_external', called_at = COALESCE(called_at, (SELECT now FROM onced_clock)),
       updated_at = (SELECT now FROM onced_clock), lease_until = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status = 'in_progress';
