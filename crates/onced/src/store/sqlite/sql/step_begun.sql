-- A step of the work begins, which calls outside: while its outcome is unknown, the whole counts as pending. The lease
-- begins anew. Expects exactly one row; zero means that the claim was lost, or that the record has announced an outside
-- call which is no step.
UPDATE onced_idempotency_keys AS k
   SET status = 'pending_external', called_at = coalesce(called_at, (SELECT now FROM onced_clock)),
       updated_at = (SELECT now FROM onced_clock), lease_until = (SELECT now FROM onced_clock) + ?4
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3
   AND (status = 'in_progress' OR status = 'pending_external' AND EXISTS (
            SELECT 1 FROM onced_idempotency_keys s
             WHERE s.key = ?2 AND s.scope > ?1 || '#' AND s.scope < ?1 || '$'
               AND instr(s.scope, '#') > 0 AND s.status NOT IN ('completed', 'failed')))
RETURNING expires_at;
