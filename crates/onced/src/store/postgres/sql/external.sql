-- Announce an outside call, and set the lease anew. Expects exactly one row; zero means that the claim was lost.
UPDATE onced.idempotency_keys
   SET status = 'pending_external', called_at = coalesce(called_at, onced.clock()), updated_at = onced.clock(),
       lease_until = onced.clock() + $4 * interval '1 microsecond'
 WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status = 'in_progress'
RETURNING onced.micros(expires_at) AS expires_at;
