-- Delete at most ?1 lines of deliveries that came in longer than ?2 ago, but none of a key that is unfinished. Ids are
-- ordered by time, to a clock's error, so the primary key finds the old ones.
DELETE FROM onced_deliveries
 WHERE id IN (SELECT d.id
                FROM onced_deliveries d
               WHERE d.id < (SELECT format('%08x-%04x', ((now - ?2) / 1000 + 1) >> 16, ((now - ?2) / 1000 + 1) & 65535) FROM onced_clock)
                 AND d.received_at <= (SELECT now - ?2 FROM onced_clock)
                 AND NOT EXISTS (SELECT 1 FROM onced_idempotency_keys k
                                  WHERE k.scope = d.scope AND k.key = d.key AND k.status NOT IN ('completed', 'failed'))
               ORDER BY d.id
               LIMIT ?1);
