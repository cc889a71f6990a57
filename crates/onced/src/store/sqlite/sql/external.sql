-- Announce an outside call, and set the lease anew. Expects exactly one row; zero means that the claim was lost.
UPDATE onced_idempotency_keys
   SET status = 'pending_external', called_at = coalesce(called_at, (SELECT now FROM onced_clock)),
       updated_at = (SELECT now FROM onced_clock), lease_until = (SELECT now FROM onced_clock) + ?4
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3 AND status = 'in_progress'
RETURNING expires_at;
