-- Say with which statuses executing deliveries were answered, given as a JSON array of pairs of id and status.
UPDATE JSON_TABLE(?, '$[*]' COLUMNS (id VARCHAR(32) PATH '$[0]', status INTEGER PATH '$[1]')) a
  STRAIGHT_JOIN onced_deliveries d FORCE INDEX (PRIMARY) ON d.id = UNHEX(a.id)
   SET d.answered_status = a.status;
