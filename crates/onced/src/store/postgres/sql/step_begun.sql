-- A step of the work begins, which calls outside: while its outcome is unknown, the whole counts as pending. The lease
-- begins anew. Expects exactly one row; zero means that the claim was lost, or that the record has announced an outside
-- call which is no step.
UPDATE onced.idempotency_keys k
   SET status = 'pending_external', called_at = coalesce(k.called_at, onced.clock()), updated_at = onced.clock(),
       lease_until = onced.clock() + $4 * interval '1 microsecond'
 WHERE k.scope = $1 AND k.key = $2 AND k.lease_token = $3
   AND (k.status = 'in_progress' OR k.status = 'pending_external' AND EXISTS (
            SELECT FROM onced.idempotency_keys s
             WHERE s.key = k.key AND s.scope > k.scope || '#' AND s.scope < k.scope || '$'
               AND position('#' IN s.scope) > 0 AND s.status NOT IN ('completed', 'failed')))
RETURNING onced.micros(k.expires_at) AS expires_at;
