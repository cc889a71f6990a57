-- A person says that the outside call took effect: the record is completed. Expects zero or one row; zero means that
-- it is not pending, that its owner may be alive, or that it changed meanwhile.
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_token = NULL, lease_until = NULL, response_code = ?, response_headers = ?,
       response_body = ?, body_omitted = ?, error = NULL, held_at = NULL, next_probe_at = NULL,
       completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND lease_token <=> ? AND status = 'pending_external'
   AND lease_until <= (SELECT now FROM onced_clock);
