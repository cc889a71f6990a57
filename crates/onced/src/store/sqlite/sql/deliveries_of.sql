-- The deliveries of one key, oldest first.
SELECT received_at, decision, answered_status, attempt
  FROM onced_deliveries WHERE scope = ?1 AND key = ?2
 ORDER BY received_at, id LIMIT ?3;
