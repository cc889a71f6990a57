-- Extend the lease. Expects exactly one row; zero means that the claim was lost, or that the record has ended.
UPDATE onced_idempotency_keys
   SET lease_until = (SELECT now FROM onced_clock) + ?4, updated_at = (SELECT now FROM onced_clock)
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3 AND status IN ('in_progress', 'pending_external')
RETURNING expires_at;
