-- Delete at most $1 finished, expired records, and their steps. Never waits: one sweeper at a time, and a record that
-- somebody has locked (to begin its next life) is skipped. The delete repeats the whole condition on the row: what was
-- picked from this snapshot may have begun a new life since.
-- The two-number lock cannot meet that of a key, which is one number.
WITH RECURSIVE t AS MATERIALIZED (SELECT onced.clock() AS now),
lock AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(1869505380, 'onced.idempotency_keys'::regclass::oid::integer) AS got),
-- Records with a step that has not ended count as unfinished.
busy AS MATERIALIZED (
    SELECT split_part(scope, '#', 1) AS scope, key FROM onced.idempotency_keys
     WHERE status NOT IN ('completed', 'failed') AND position('#' IN scope) > 0
), picked AS MATERIALIZED (
    SELECT k.scope, k.key
      FROM onced.idempotency_keys k
     WHERE (SELECT got FROM lock) AND k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM t)
       AND k.held_at IS NULL
       AND CASE WHEN position('#' IN k.scope) = 0 THEN (k.scope, k.key) NOT IN (SELECT scope, key FROM busy)
                ELSE NOT EXISTS (SELECT FROM onced.idempotency_keys p
                                  WHERE p.scope = split_part(k.scope, '#', 1) AND p.key = k.key) END
     ORDER BY k.expires_at
     LIMIT $1
       FOR UPDATE OF k SKIP LOCKED
), gone AS (
    DELETE FROM onced.idempotency_keys k USING picked
     WHERE k.scope = picked.scope AND k.key = picked.key AND k.status IN ('completed', 'failed')
       AND k.expires_at <= (SELECT now FROM t) AND k.held_at IS NULL
    RETURNING k.scope, k.key
),
-- The scopes of steps, found by jumping from one to the next: (scope, key) is indexed, the key alone is not.
step_scopes AS (
    SELECT p.scope AS parent,
           (SELECT min(s.scope) FROM onced.idempotency_keys s
             WHERE s.scope > p.scope || '#' AND s.scope < p.scope || '$') AS scope
      FROM (SELECT DISTINCT scope FROM picked) p
    UNION ALL
    SELECT last.parent,
           (SELECT min(s.scope) FROM onced.idempotency_keys s
             WHERE s.scope > last.scope AND s.scope < last.parent || '$')
      FROM step_scopes last WHERE last.scope IS NOT NULL
), steps AS (
    DELETE FROM onced.idempotency_keys s USING gone, step_scopes
     WHERE step_scopes.parent = gone.scope AND s.scope = step_scopes.scope AND s.key = gone.key
       AND s.status IN ('completed', 'failed')
    RETURNING s.key
)
SELECT lock.got, (SELECT count(*) FROM gone) + (SELECT count(*) FROM steps) AS deleted FROM lock;
