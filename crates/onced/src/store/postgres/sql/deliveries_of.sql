-- The deliveries of one key, oldest first.
SELECT onced.micros(received_at) AS received_at, decision, answered_status, attempt
  FROM onced.deliveries WHERE scope = $1 AND key = $2
 ORDER BY received_at, id LIMIT $3;
