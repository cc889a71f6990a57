-- Delete the steps of records that are gone, given as a JSON array of pairs of scope and key. A record that was picked may
-- have been spared since (the clock was set back): its steps stay.
DELETE k
  FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(127) PATH '$[0]', `key` VARCHAR(255) PATH '$[1]')) p
  STRAIGHT_JOIN onced_idempotency_keys k FORCE INDEX (PRIMARY)
    ON k.scope = CAST(p.scope AS BINARY) AND k.`key` = CAST(p.`key` AS BINARY)
  LEFT JOIN onced_idempotency_keys whole
    ON whole.scope = CAST(SUBSTRING_INDEX(p.scope, '#', 1) AS BINARY) AND whole.`key` = CAST(p.`key` AS BINARY)
 WHERE k.status IN ('completed', 'failed') AND whole.`key` IS NULL;
