-- Write the line of the delivery that the statement before this one has claimed for; `changes()` is of that one.
INSERT INTO onced_deliveries (id, scope, key, received_at, decision, answered_status, request_hash, attempt)
SELECT ?11, ?1, ?2, t.now, 'execute', NULL, ?3, 1 FROM onced_clock t WHERE changes() = 1 AND ?11 IS NOT NULL
ON CONFLICT (id) DO NOTHING;
