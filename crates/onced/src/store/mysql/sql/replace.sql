-- Replace a finished record that has expired: the key counts as unknown again. Expects zero or one row; zero means
-- that a rival was faster. Never waits: 1205 at once means that a rival has locked the row.
SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
UPDATE onced_idempotency_keys
   SET request_hash = ?, hash_version = ?, status = ?, attempt = 1, lease_token = ?,
       lease_until = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND, downstream_key = ?,
       called_at = CASE WHEN ? = 'pending_external' THEN (SELECT now FROM onced_clock) END, retry_window = ?,
       created_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND,
       response_code = NULL, response_headers = NULL, response_body = NULL, body_omitted = false,
       called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, error = NULL, completed_at = NULL
 WHERE scope = ? AND `key` = ? AND status IN ('completed', 'failed') AND lease_token <=> ?
   AND expires_at <= (SELECT now FROM onced_clock);
