-- A step of the work has ended: where no other is unfinished, nothing is unknown any more, and the whole is in progress
-- again. A step that has failed may have been called: its first call counts for as long as it is not recorded.
-- Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
UPDATE (SELECT MIN(s.called_at) AS called_at,
               COUNT(CASE WHEN s.status <> 'failed' THEN 1 END) AS unfinished FROM onced_idempotency_keys s FORCE INDEX (onced_keys_by_key)
         WHERE s.`key` = ? AND s.scope > CONCAT(?, '#') AND s.scope < CONCAT(?, '$')
           AND s.status <> 'completed') left_over, onced_idempotency_keys k
   SET k.status = CASE WHEN left_over.unfinished = 0 THEN 'in_progress' ELSE 'pending_external' END,
       k.called_at = left_over.called_at, k.updated_at = (SELECT now FROM onced_clock)
 WHERE k.scope = ? AND k.`key` = ? AND k.lease_token = ? AND k.status = 'pending_external';
