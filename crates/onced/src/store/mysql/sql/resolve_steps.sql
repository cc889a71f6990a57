-- What a person says of the whole is true of a step of it that has no outcome.
UPDATE onced_idempotency_keys
   SET status = ?, lease_token = NULL, lease_until = NULL, error = 'resolved with the whole',
       updated_at = (SELECT now FROM onced_clock),
       completed_at = CASE WHEN ? = 'completed' THEN (SELECT now FROM onced_clock) END
 WHERE `key` = ? AND scope > CONCAT(?, '#') AND scope < CONCAT(?, '$') AND status = 'pending_external';
