-- Whether the next statement would stand alone. Within a transaction the first of these is refused, without any effect on
-- that, and the second is not begun; outside of one both pass.
BEGIN;
ROLLBACK;
