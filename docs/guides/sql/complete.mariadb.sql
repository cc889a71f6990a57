-- An application in front of which the gateway stands with effect = "same-database" runs this in the transaction of
-- its own rows. One row changed: commit. None: another attempt has taken over; roll back. The parameters in their order:
--   the status to replay          the headers to replay, a JSON array of [name, value] pairs, names in lower case
--   the body to replay, as bytes
--   the header Onced-Scope        the header Onced-Key         the header Onced-Lease-Token
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_until = NULL, response_code = ?, response_headers = ?, response_body = ?,
       body_omitted = false, error = NULL, held_at = NULL, next_probe_at = NULL, completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = GREATEST(expires_at, (SELECT now FROM onced_clock) + INTERVAL retry_window MICROSECOND)
 WHERE scope = ? AND `key` = ? AND lease_token = ? AND status IN ('in_progress', 'pending_external')
