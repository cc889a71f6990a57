-- A step of the work has ended: where no other is unfinished, nothing is unknown any more, and the whole is in progress
-- again. Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
UPDATE (SELECT MIN(s.called_at) AS called_at FROM onced_idempotency_keys s FORCE INDEX (onced_keys_by_key)
         WHERE s.`key` = ? AND s.scope > CONCAT(?, '#') AND s.scope < CONCAT(?, '$')
           AND s.status NOT IN ('completed', 'failed')) left_over, onced_idempotency_keys k
   SET k.status = CASE WHEN left_over.called_at IS NULL THEN 'in_progress' ELSE 'pending_external' END,
       k.called_at = left_over.called_at, k.updated_at = (SELECT now FROM onced_clock)
 WHERE k.scope = ? AND k.`key` = ? AND k.lease_token = ? AND k.status = 'pending_external';
