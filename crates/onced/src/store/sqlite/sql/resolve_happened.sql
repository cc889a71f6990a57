-- A person says that the outside call took effect: the record is completed. Expects zero or one row; zero means that
-- it is not pending, that its owner may be alive, or that it changed meanwhile.
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_token = NULL, lease_until = NULL, response_code = ?4, response_headers = ?5, response_body = ?6,
       body_omitted = ?7, error = NULL, held_at = NULL, next_probe_at = NULL,
       completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = max(expires_at, (SELECT now FROM onced_clock) + retry_window)
 WHERE scope = ?1 AND key = ?2 AND lease_token IS ?3 AND status = 'pending_external'
   AND lease_until <= (SELECT now FROM onced_clock);
