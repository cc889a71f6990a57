-- Delete the records that were picked, given as a JSON array of pairs of scope and key; the whole condition is repeated.
DELETE k
  FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(127) PATH '$[0]', `key` VARCHAR(255) PATH '$[1]')) p
  STRAIGHT_JOIN onced_idempotency_keys k FORCE INDEX (PRIMARY)
    ON k.scope = CAST(p.scope AS BINARY) AND k.`key` = CAST(p.`key` AS BINARY)
 WHERE k.status IN ('completed', 'failed') AND k.expires_at <= (SELECT now FROM onced_clock) AND k.held_at IS NULL;
