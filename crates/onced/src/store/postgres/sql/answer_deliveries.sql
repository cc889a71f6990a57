-- Say with which status the executing deliveries were answered.
UPDATE onced.deliveries d SET answered_status = a.status
  FROM unnest($1::uuid[], $2::integer[]) AS a (id, status)
 WHERE d.id = a.id;
