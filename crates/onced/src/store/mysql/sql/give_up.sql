-- Mark a record that is out of attempts as failed. Expects zero or one row; zero means that a rival was faster.
-- Never waits: 1205 at once means that a rival is at work. The token goes, so that its owner does not take the record for
-- its own.
SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
UPDATE onced_idempotency_keys
   SET status = 'failed', lease_token = NULL, lease_until = NULL, error = ?, updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND status = 'in_progress' AND attempt = ? AND lease_token <=> ?
   AND lease_until <= (SELECT now FROM onced_clock);
