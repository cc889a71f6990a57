-- A person says that the outside call had no effect: the record failed and may run again. Expects zero or one row;
-- zero means that it is not pending, that its owner may be alive, that too little time has passed since the last
-- caller's lease ended, or that it changed meanwhile. The reason commits with it.
WITH t AS MATERIALIZED (SELECT onced.clock() AS now),
resolved AS (
    UPDATE onced.idempotency_keys k
       SET status = 'failed', lease_token = NULL, lease_until = NULL, error = $5, held_at = NULL, next_probe_at = NULL,
           updated_at = t.now, expires_at = CASE WHEN k.expires_at IS NOT NULL THEN greatest(k.expires_at, t.now + k.retry_window) END
      FROM t
     WHERE k.scope = $1 AND k.key = $2 AND k.lease_token IS NOT DISTINCT FROM $3 AND k.status = 'pending_external'
       AND k.lease_until <= t.now
       AND coalesce(k.called_until, k.lease_until) + $4 * interval '1 microsecond' <= t.now
    RETURNING k.scope, k.key, k.updated_at
), steps AS (
    -- What is true of the whole is true of a step that has no outcome.
    UPDATE onced.idempotency_keys s
       SET status = 'failed', lease_token = NULL, lease_until = NULL, error = 'resolved with the whole',
           updated_at = resolved.updated_at
      FROM resolved
     WHERE s.key = resolved.key AND s.scope > resolved.scope || '#' AND s.scope < resolved.scope || '$'
       AND s.status = 'pending_external'
)
INSERT INTO onced.audit (id, at, who, action, scope, key, reason)
SELECT $6, updated_at, $7, 'resolve --did-not-happen', scope, key, $8 FROM resolved;
