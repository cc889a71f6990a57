-- A step of the work has ended: where no other is unfinished, nothing is unknown any more, and the whole is in progress
-- again. Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
UPDATE onced_idempotency_keys AS k
   SET status = CASE WHEN left_over.called_at IS NULL THEN 'in_progress' ELSE 'pending_external' END,
       called_at = left_over.called_at, updated_at = (SELECT now FROM onced_clock)
  FROM (SELECT min(s.called_at) AS called_at FROM onced_idempotency_keys s
         WHERE s.key = ?2 AND s.scope > ?1 || '#' AND s.scope < ?1 || '$'
           AND instr(s.scope, '#') > 0 AND s.status NOT IN ('completed', 'failed')) AS left_over
 WHERE k.scope = ?1 AND k.key = ?2 AND k.lease_token = ?3 AND k.status = 'pending_external'
RETURNING expires_at;
