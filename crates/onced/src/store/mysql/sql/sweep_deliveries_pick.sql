-- Lock at most that many lines of deliveries that came in longer ago than they are kept, but none of a key that is
-- unfinished. Under the sweeper's lock. Ids are ordered by time, to a clock's error, so the primary key finds the old ones.
SELECT d.id
  FROM onced_deliveries d
 WHERE d.id < UNHEX(CONCAT(LPAD(HEX(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00',
                       (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND) DIV 1000 + 1), 12, '0'), REPEAT('0', 20)))
   AND d.received_at <= (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND
   AND NOT EXISTS (SELECT 1 FROM onced_idempotency_keys k
                    WHERE k.scope = d.scope AND k.`key` = d.`key`
                      AND k.status IN ('queued', 'in_progress', 'pending_external'))
 ORDER BY d.id
 LIMIT ?
   FOR UPDATE SKIP LOCKED;
