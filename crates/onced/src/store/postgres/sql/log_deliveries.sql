-- Write a batch of delivery lines. A line that is there already stays as it is.
INSERT INTO onced.deliveries (id, scope, key, received_at, decision, answered_status, request_hash, attempt)
SELECT l.id, l.scope, l.key, onced.clock() - l.age * interval '1 microsecond', l.decision, l.answered_status, l.request_hash, l.attempt
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::integer[], $7::bytea[], $8::integer[])
       AS l (id, scope, key, age, decision, answered_status, request_hash, attempt)
ON CONFLICT (id) DO NOTHING;
