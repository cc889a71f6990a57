-- A person says that the outside call had no effect: the record failed and may run again. Expects zero or one row;
-- zero means that it is not pending, that its owner may be alive, that too little time has passed since the last
-- caller's lease ended, or that it changed meanwhile.
UPDATE onced_idempotency_keys
   SET status = 'failed', lease_token = NULL, lease_until = NULL, error = ?, held_at = NULL, next_probe_at = NULL,
       updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND lease_token <=> ? AND status = 'pending_external'
   AND lease_until <= (SELECT now FROM onced_clock)
   AND COALESCE(called_until, lease_until) + INTERVAL ? MICROSECOND <= (SELECT now FROM onced_clock);
