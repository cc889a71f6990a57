-- Give a key back. Expects exactly one row; zero means that the claim was lost, or that the key must stay: after an
-- earlier attempt, a step, or the announcement of an outside call.
DELETE FROM onced.idempotency_keys k
 WHERE scope = $1 AND key = $2 AND lease_token = $3 AND status = 'in_progress' AND attempt = 1
   AND NOT EXISTS (SELECT FROM onced.idempotency_keys s
                    WHERE s.key = k.key AND s.scope > k.scope || '#' AND s.scope < k.scope || '$')
RETURNING onced.micros(expires_at) AS expires_at;
