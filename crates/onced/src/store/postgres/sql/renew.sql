-- Extend the lease. Expects exactly one row; zero means that the claim was lost, or that the record has ended.
UPDATE onced.idempotency_keys
   SET lease_until = onced.clock() + $4 * interval '1 microsecond', updated_at = onced.clock()
 WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status IN ('in_progress', 'pending_external')
RETURNING onced.micros(expires_at) AS expires_at;
