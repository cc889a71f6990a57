-- The steps that there are of the records that were picked, given as a JSON array of pairs of scope and key. Locks nothing:
-- a record that has finished begins no step.
SELECT k.scope, k.`key`
  FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(127) PATH '$[0]', `key` VARCHAR(255) PATH '$[1]')) p
  STRAIGHT_JOIN onced_idempotency_keys k FORCE INDEX (onced_keys_by_key)
    ON k.`key` = CAST(p.`key` AS BINARY)
   AND k.scope > CAST(CONCAT(p.scope, '#') AS BINARY) AND k.scope < CAST(CONCAT(p.scope, '$') AS BINARY);
