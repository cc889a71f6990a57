-- Give a key back. Expects exactly one row; zero means that the claim was lost, or that the key must stay: after an
-- earlier attempt, a step, or the announcement of an outside call.
DELETE FROM onced_idempotency_keys AS k
 WHERE scope = ?1 AND key = ?2 AND lease_token = ?3 AND status = 'in_progress' AND attempt = 1
   AND NOT EXISTS (SELECT 1 FROM onced_idempotency_keys s
                    WHERE s.key = k.key AND s.scope > k.scope || '#' AND s.scope < k.scope || '$')
RETURNING expires_at;
