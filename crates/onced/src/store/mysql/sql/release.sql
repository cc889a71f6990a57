-- Give a key back. Expects exactly one row; zero means that the claim was lost, or that the key must stay: after an
-- earlier attempt, a step, or the announcement of an outside call.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5 FOR
DELETE FROM onced_idempotency_keys
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status = 'in_progress' AND attempt = 1
   AND NOT EXISTS (SELECT 1 FROM (SELECT s.scope, s.`key` FROM onced_idempotency_keys s
                                   WHERE s.`key` = ? AND s.scope > CONCAT(?, '#') AND s.scope < CONCAT(?, '$')) steps)
RETURNING TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', expires_at) AS expires_at;
