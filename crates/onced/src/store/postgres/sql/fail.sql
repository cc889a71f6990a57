-- Record a failed attempt. Expects exactly one row; zero means that the claim was lost.
-- Status and token guard the change: an error path after a lost commit reply cannot turn `completed` into `failed`.
UPDATE onced.idempotency_keys
   SET status = 'failed', lease_until = NULL, response_code = $4, response_headers = $5, response_body = $6,
       body_omitted = $7, error = $8, updated_at = onced.clock(),
       expires_at = CASE WHEN expires_at IS NOT NULL THEN greatest(expires_at, onced.clock() + retry_window) END
 WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status IN ('in_progress', 'pending_external')
   AND ($9::text IS NULL OR status = $9)
RETURNING onced.micros(expires_at) AS expires_at;
