-- An application in front of which the gateway stands with effect = "same-database" runs this in the transaction of
-- its own rows. It returns when the record expires. An error with SQLSTATE OC001: another attempt has taken over; roll back.
--   $1 the header Onced-Scope     $2 the header Onced-Key      $3 the header Onced-Lease-Token
--   $4 the status to replay       $5 the headers to replay, a JSON array of [name, value] pairs, names in lower case
--   $6 the body to replay, as bytes
SELECT onced.complete($1, $2, $3, $4, $5, $6)
