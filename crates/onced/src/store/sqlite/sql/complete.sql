-- Store the outcome. Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
-- Status and token guard the change.
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_until = NULL, response_code = ?4, response_headers = ?5, response_body = ?6,
       body_omitted = ?7, error = NULL, held_at = NULL, next_probe_at = NULL,
       completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = max(expires_at, (SELECT now FROM onced_clock) + retry_window)
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3 AND status IN ('in_progress', 'pending_external')
   AND (?8 IS NULL OR status = ?8)
RETURNING expires_at;
