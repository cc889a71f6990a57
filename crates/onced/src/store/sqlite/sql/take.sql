-- Take an existing record for the next attempt. Expects zero or one row; zero means that a rival was faster.
-- Repeats all that was decided on: status, attempt, token, and the time at which it became free.
UPDATE onced_idempotency_keys
   SET status = ?7, attempt = ?4 + 1, lease_token = ?8, lease_until = (SELECT now FROM onced_clock) + ?9,
       downstream_key = coalesce(downstream_key, ?10),
       called_at = CASE WHEN ?7 = 'pending_external' THEN coalesce(called_at, (SELECT now FROM onced_clock)) ELSE called_at END,
       called_until = NULL, probe_count = 0, next_probe_at = NULL, held_at = NULL, completed_at = NULL,
       updated_at = (SELECT now FROM onced_clock)
 WHERE scope = ?1 AND key = ?2 AND status = ?3 AND attempt = ?4 AND lease_token IS ?5
   AND (NOT ?6 OR lease_until <= (SELECT now FROM onced_clock))
RETURNING expires_at, attempt;
