-- What people decided by hand about one key, oldest first.
SELECT TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', at) AS at_micros, who, action, reason
  FROM onced_audit WHERE scope = ? AND `key` = ? ORDER BY at, id;
