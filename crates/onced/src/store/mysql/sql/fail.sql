-- Record a failed attempt. Expects exactly one row; zero means that the claim was lost.
-- Status and token guard the change: an error path after a lost commit reply cannot turn `completed` into `failed`.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
UPDATE onced_idempotency_keys
   SET status = 'failed', lease_until = NULL, response_code = ?, response_headers = ?, response_body = ?,
       body_omitted = ?, error = ?, updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status IN ('in_progress', 'pending_external')
   AND (? IS NULL OR status = ?);
