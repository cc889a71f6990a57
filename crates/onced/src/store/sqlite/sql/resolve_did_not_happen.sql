-- A person says that the outside call had no effect: the record failed and may run again. Expects zero or one row;
-- zero means that it is not pending, that its owner may be alive, that too little time has passed since the last
-- caller's lease ended, or that it changed meanwhile.
UPDATE onced_idempotency_keys
   SET status = 'failed', lease_token = NULL, lease_until = NULL, error = ?5, held_at = NULL, next_probe_at = NULL,
       updated_at = (SELECT now FROM onced_clock),
       expires_at = max(expires_at, (SELECT now FROM onced_clock) + retry_window)
 WHERE scope = ?1 AND key = ?2 AND lease_token IS ?3 AND status = 'pending_external'
   AND lease_until <= (SELECT now FROM onced_clock)
   AND coalesce(called_until, lease_until) + ?4 <= (SELECT now FROM onced_clock);
