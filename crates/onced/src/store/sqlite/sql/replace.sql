-- Replace a finished record that has expired: the key counts as unknown again. Expects zero or one row; zero means
-- that a rival was faster.
UPDATE onced_idempotency_keys
   SET request_hash = ?3, hash_version = ?4, status = ?5, attempt = 1, lease_token = ?6,
       lease_until = (SELECT now FROM onced_clock) + ?7, downstream_key = ?8,
       called_at = CASE WHEN ?5 = 'pending_external' THEN (SELECT now FROM onced_clock) END, retry_window = ?9,
       created_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = (SELECT now FROM onced_clock) + ?10,
       response_code = NULL, response_headers = NULL, response_body = NULL, body_omitted = 0,
       called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, error = NULL, completed_at = NULL
 WHERE scope = ?1 AND key = ?2 AND status IN ('completed', 'failed') AND lease_token IS ?11
   AND expires_at <= (SELECT now FROM onced_clock)
RETURNING expires_at, attempt;
