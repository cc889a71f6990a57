-- Write delivery lines, given as a JSON array of arrays; the fourth member is how long ago a delivery came in. A line that
-- is there already stays as it is.
INSERT INTO onced_deliveries (id, scope, key, received_at, decision, answered_status, request_hash, attempt)
SELECT l.value ->> 0, l.value ->> 1, l.value ->> 2, t.now - (l.value ->> 3), l.value ->> 4, l.value ->> 5,
       unhex(l.value ->> 6), l.value ->> 7
  FROM onced_clock t, json_each(?1) l WHERE true
ON CONFLICT (id) DO NOTHING;
