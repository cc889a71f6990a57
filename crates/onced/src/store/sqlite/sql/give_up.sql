-- Mark a record that is out of attempts as failed. Expects zero or one row; zero means that a rival was faster.
-- The token goes, so that its owner does not take the record for its own.
UPDATE onced_idempotency_keys
   SET status = 'failed', lease_token = NULL, lease_until = NULL, error = ?5, updated_at = (SELECT now FROM onced_clock),
       expires_at = max(expires_at, (SELECT now FROM onced_clock) + retry_window)
 WHERE scope = ?1 AND key = ?2 AND status = 'in_progress' AND attempt = ?3 AND lease_token IS ?4
   AND lease_until <= (SELECT now FROM onced_clock);
