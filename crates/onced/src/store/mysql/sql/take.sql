-- Take an existing record for the next attempt. Expects zero or one row; zero means that a rival was faster.
-- Repeats all that was decided on: status, attempt, token, and the time at which it became free.
-- Never waits: 1205 at once means that a rival has locked the row.
SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 5, sql_mode = 'STRICT_ALL_TABLES' FOR
UPDATE onced_idempotency_keys
   SET status = ?, attempt = attempt + 1, lease_token = ?,
       lease_until = (SELECT now FROM onced_clock) + INTERVAL ? MICROSECOND,
       downstream_key = COALESCE(downstream_key, ?),
       called_at = CASE WHEN ? = 'pending_external' THEN COALESCE(called_at, (SELECT now FROM onced_clock)) ELSE called_at END,
       called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, completed_at = NULL,
       updated_at = (SELECT now FROM onced_clock)
 WHERE scope = ? AND `key` = ? AND status = ? AND attempt = ? AND lease_token <=> ?
   AND (NOT ? OR lease_until <= (SELECT now FROM onced_clock));
