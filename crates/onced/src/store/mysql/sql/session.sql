-- What our own connections begin with. Every wait is bounded; what is left waiting is answered "in progress" or 503, never
-- executed. Nothing is cut to fit.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;
SET SESSION innodb_lock_wait_timeout = 5, SESSION lock_wait_timeout = 5, SESSION max_statement_time = 10,
    SESSION idle_transaction_timeout = 30, SESSION autocommit = 1, SESSION time_zone = '+00:00',
    SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ZERO_DATE,NO_ZERO_IN_DATE,NO_ENGINE_SUBSTITUTION';
