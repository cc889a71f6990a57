-- Delete the lines that were picked, given as a JSON array of ids; the condition is repeated.
DELETE d
  FROM JSON_TABLE(?, '$[*]' COLUMNS (id VARCHAR(32) PATH '$')) p
  STRAIGHT_JOIN onced_deliveries d FORCE INDEX (PRIMARY) ON d.id = UNHEX(p.id)
 WHERE d.received_at <= (SELECT now FROM onced_clock) - INTERVAL ? MICROSECOND;
