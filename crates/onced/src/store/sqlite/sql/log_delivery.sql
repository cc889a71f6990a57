-- Write one delivery line; `?4` is how long ago it came in. A line that is there already stays as it is.
INSERT INTO onced_deliveries (id, scope, key, received_at, decision, answered_status, request_hash, attempt)
SELECT ?1, ?2, ?3, t.now - ?4, ?5, ?6, ?7, ?8 FROM onced_clock t WHERE true
ON CONFLICT (id) DO NOTHING;
