-- A step of the work begins, which calls outside: while its outcome is unknown, the whole counts as pending. The lease
-- begins anew. Expects exactly one row; zero means that the claim was lost, or that the record has announced an outside
-- call which is no step.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
UPDATE onced_idempotency_keys
   SET status = 'pending_external', called_at = COALESCE(called_at, (SELECT now FROM onced_clock)),
       updated_at = (SELECT now FROM onced_clock), lease_until = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND
 WHERE scope = ? AND `key` = ? AND lease_token = ?
   AND (status = 'in_progress' OR status = 'pending_external' AND EXISTS (
            SELECT 1 FROM (SELECT s.scope FROM onced_idempotency_keys s FORCE INDEX (onced_keys_by_key)
                            WHERE s.`key` = ? AND s.scope > CONCAT(?, '#') AND s.scope < CONCAT(?, '$')
                              AND s.status NOT IN ('completed', 'failed')) steps));
