-- A step of the work has ended: where no other is unfinished, nothing is unknown any more, and the whole is in progress
-- again. A step that has failed may have been called: its first call counts for as long as it is not recorded.
-- Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
UPDATE onced_idempotency_keys AS k
   SET status = CASE WHEN left_over.unfinished = 0 THEN 'in_progress' ELSE 'pending_external' END,
       called_at = left_over.called_at, updated_at = (SELECT now FROM onced_clock)
  FROM (SELECT min(s.called_at) AS called_at,
               count(CASE WHEN s.status <> 'failed' THEN 1 END) AS unfinished FROM onced_idempotency_keys s
         WHERE s.key = ?2 AND s.scope > ?1 || '#' AND s.scope < ?1 || '$'
           AND instr(s.scope, '#') > 0 AND s.status <> 'completed') AS left_over
 WHERE k.scope = ?1 AND k.key = ?2 AND k.lease_token = ?3 AND k.status = 'pending_external'
RETURNING expires_at;
