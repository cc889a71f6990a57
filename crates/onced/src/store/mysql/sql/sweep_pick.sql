-- Lock at most that many finished, expired records, the longest expired first. Under the sweeper's lock. Never waits: a
-- record that somebody has locked (to begin its next life) is skipped.
SELECT k.scope, k.`key`
  FROM onced_idempotency_keys k
 WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock) AND k.held_at IS NULL
   -- A record with a step that has not ended counts as unfinished.
   AND CASE WHEN LOCATE('#', k.scope) = 0
            THEN (k.scope, k.`key`) NOT IN (
                     SELECT SUBSTRING_INDEX(b.scope, '#', 1), b.`key` FROM onced_idempotency_keys b
                      WHERE b.status IN ('queued', 'in_progress', 'pending_external') AND LOCATE('#', b.scope) > 0)
            ELSE NOT EXISTS (SELECT 1 FROM onced_idempotency_keys p
                              WHERE p.scope = SUBSTRING_INDEX(k.scope, '#', 1) AND p.`key` = k.`key`) END
 ORDER BY k.expires_at
 LIMIT ?
   FOR UPDATE SKIP LOCKED;
