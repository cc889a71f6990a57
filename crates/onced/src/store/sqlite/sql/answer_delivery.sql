-- Say with which status an executing delivery was answered.
UPDATE onced_deliveries SET answered_status = ?2 WHERE id = ?1;
