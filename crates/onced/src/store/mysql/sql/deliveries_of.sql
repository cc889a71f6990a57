-- The deliveries of one key, oldest first.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', received_at) AS received_micros, decision,
       answered_status, attempt
  FROM onced_deliveries WHERE scope = ? AND `key` = ?
 ORDER BY received_at, id LIMIT ?;
