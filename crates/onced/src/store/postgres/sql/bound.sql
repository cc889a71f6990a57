-- Bound the caller's transaction where it is not: there is no lease to save anyone from an owner that hangs inside it.
-- Holds for this transaction only; a tighter bound of the caller's own stays.
SELECT CASE WHEN current_setting('idle_in_transaction_session_timeout')::interval
                 NOT BETWEEN interval '1 ms' AND $1 * interval '1 microsecond'
            THEN set_config('idle_in_transaction_session_timeout', ($1 / 1000)::text, true) END,
       CASE WHEN current_setting('statement_timeout')::interval = interval '0'
            THEN set_config('statement_timeout', ($1 / 1000)::text, true) END;
