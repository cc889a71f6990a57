-- Delete at most ?1 finished, expired records, and their steps. One statement, under the one write lock: nothing can
-- change between what is picked and what is deleted.
WITH RECURSIVE picked AS MATERIALIZED (
    SELECT k.rowid AS id, k.scope, k.key
      FROM onced_idempotency_keys k
     WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock) AND k.held_at IS NULL
       -- A record with a step that has not ended counts as unfinished.
       AND CASE WHEN instr(k.scope, '#') = 0
                THEN (k.scope, k.key) NOT IN (
                         SELECT substr(b.scope, 1, instr(b.scope, '#') - 1), b.key FROM onced_idempotency_keys b
                          WHERE b.status NOT IN ('completed', 'failed') AND instr(b.scope, '#') > 0)
                ELSE NOT EXISTS (SELECT 1 FROM onced_idempotency_keys p
                                  WHERE p.scope = substr(k.scope, 1, instr(k.scope, '#') - 1) AND p.key = k.key) END
     ORDER BY k.expires_at, k.rowid
     LIMIT ?1
),
-- The scopes of steps, found by jumping from one to the next: (scope, key) is indexed, the key alone is not.
step_scopes (parent, scope) AS (
    SELECT p.scope, (SELECT min(s.scope) FROM onced_idempotency_keys s
                      WHERE s.scope > p.scope || '#' AND s.scope < p.scope || '$')
      FROM (SELECT DISTINCT scope FROM picked) p
    UNION ALL
    SELECT last.parent, (SELECT min(s.scope) FROM onced_idempotency_keys s
                          WHERE s.scope > last.scope AND s.scope < last.parent || '$')
      FROM step_scopes last WHERE last.scope IS NOT NULL
)
DELETE FROM onced_idempotency_keys
 WHERE status IN ('completed', 'failed')
   AND rowid IN (SELECT id FROM picked
                 UNION ALL
                 SELECT s.rowid
                   FROM picked
                   JOIN step_scopes ON step_scopes.parent = picked.scope
                   JOIN onced_idempotency_keys s ON s.scope = step_scopes.scope AND s.key = picked.key);
