-- Write delivery lines, given as a JSON array of arrays; the fourth member is how long ago a delivery came in. A line that
-- is there already stays as it is.
INSERT INTO onced_deliveries (id, scope, `key`, received_at, decision, answered_status, request_hash, attempt)
SELECT UNHEX(l.id), l.scope, l.`key`, t.now - INTERVAL l.age MICROSECOND, l.decision, l.answered_status,
       UNHEX(l.request_hash), l.attempt
  FROM JSON_TABLE(?, '$[*]' COLUMNS (
           id VARCHAR(32) PATH '$[0]', scope VARCHAR(127) PATH '$[1]', `key` VARCHAR(255) PATH '$[2]',
           age BIGINT PATH '$[3]', decision VARCHAR(255) PATH '$[4]', answered_status INTEGER PATH '$[5]',
           request_hash VARCHAR(64) PATH '$[6]', attempt INTEGER PATH '$[7]')) l, onced_clock t
ON DUPLICATE KEY UPDATE onced_deliveries.id = onced_deliveries.id;
