-- Say with which statuses executing deliveries were answered, given as a JSON array of pairs of id and status.
UPDATE onced_deliveries SET answered_status = a.value ->> 1 FROM json_each(?2) a WHERE onced_deliveries.id = a.value ->> 0;
