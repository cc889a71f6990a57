-- An application in front of which the gateway stands with effect = "same-database" runs this in the transaction of
-- its own rows, begun with BEGIN IMMEDIATE. One row changed: commit. None: another attempt has taken over; roll back.
--   ?1 the header Onced-Scope     ?2 the header Onced-Key      ?3 the header Onced-Lease-Token
--   ?4 the status to replay       ?5 the headers to replay, a JSON array of [name, value] pairs, names in lower case
--   ?6 the body to replay, as bytes
UPDATE onced_idempotency_keys
   SET status = 'completed', lease_until = NULL, response_code = ?4, response_headers = ?5, response_body = ?6,
       body_omitted = 0, error = NULL, held_at = NULL, next_probe_at = NULL, completed_at = (SELECT now FROM onced_clock), updated_at = (SELECT now FROM onced_clock),
       expires_at = max(expires_at, (SELECT now FROM onced_clock) + retry_window)
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3 AND status IN ('in_progress', 'pending_external')
