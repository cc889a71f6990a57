-- Store the outcome. Expects exactly one row; zero means that the claim was lost: the transaction must roll back.
-- Uses the primary key. Status and token guard the change.
SET STATEMENT innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_until = NULL, response_code = ?, response_headers = ?, response_body = ?,
       body_omitted = ?, error = NULL, held_at = NULL, next_probe_at = NULL,
       completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status IN ('in_progress', 'pending_external')
   AND (? IS NULL OR status = ?);
