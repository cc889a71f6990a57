-- Extend the lease. Expects exactly one row; zero means that the claim was lost, or that the record has ended.
-- Never waits: an app that is slow to commit its ending holds the row, and must not hold our connections as well.
WITH mine AS MATERIALIZED (
    SELECT scope, key FROM onced.idempotency_keys
     WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status IN ('in_progress', 'pending_external')
       FOR UPDATE NOWAIT
)
UPDATE onced.idempotency_keys k
   SET lease_until = onced.clock() + $4 * interval '1 microsecond', updated_at = onced.clock()
  FROM mine
 WHERE k.scope = mine.scope AND k.key = mine.key AND k.lease_token = $3
   AND k.status IN ('in_progress', 'pending_external')
RETURNING onced.micros(k.expires_at) AS expires_at;
