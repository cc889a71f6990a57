-- A person says that the outside call took effect: the record is completed. Expects zero or one row; zero means that
-- it is not pending, that its owner may be alive, or that it changed meanwhile. The reason commits with it.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
resolved AS (
    UPDATE onced.idempotency_keys k
       SET status = 'completed', lease_token = NULL, lease_until = NULL, response_code = $4, response_headers = $5, response_body = $6,
           body_omitted = $7, error = NULL, held_at = NULL, next_probe_at = NULL, completed_at = t.now,
           updated_at = t.now, expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, t.now + k.retry_window) END
      FROM t
     WHERE k.scope = $1 AND k.key = $2 AND k.lease_token IS NOT DISTINCT FROM $3 AND k.status = 'pending_external'
       AND k.lease_until <= t.now
    RETURNING k.scope, k.key, k.updated_at
), steps AS (
    -- What is true of the whole is true of a step that has no outcome.
    UPDATE onced.idempotency_keys s
       SET status = 'completed', lease_token = NULL, lease_until = NULL, error = 'resolved with the whole', completed_at = resolved.updated_at,
           updated_at = resolved.updated_at
      FROM resolved
     WHERE s.key = resolved.key AND s.scope > resolved.scope || '#' AND s.scope < resolved.scope || '$'
       AND s.status = 'pending_external'
)
INSERT INTO onced.audit (id, at, who, action, scope, key, reason)
SELECT $8, updated_at, $9, 'resolve --happened', scope, key, $10 FROM resolved;
