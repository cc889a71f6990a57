-- Store the outcome. Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
-- Uses the primary key. Safe at read committed: status and token guard the change.
UPDATE onced.idempotency_keys
   SET status = 'completed', lease_until = NULL, response_code = $4, response_headers = $5, response_body = $6,
       body_omitted = $7, error = NULL, held_at = NULL, next_probe_at = NULL, completed_at = onced.clock(),
       updated_at = onced.clock(), expires_at = CASE WHEN expires_at IS NOT NULL THEN greatest(expires_at, onced.clock() + retry_window) END
 WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status IN ('in_progress', 'pending_external')
   AND ($8::text IS NULL OR status = $8)
RETURNING onced.micros(expires_at) AS expires_at;
