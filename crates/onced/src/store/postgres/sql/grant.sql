-- Let a role call the functions for applications. It needs no right to any table, and gets none. Not `resolve`, which is
-- for people. May be run again.
GRANT USAGE ON SCHEMA onced TO :role;
GRANT EXECUTE ON FUNCTION onced.begin, onced.complete, onced.fail, onced.external, onced.renew, onced.release,
    onced.raw_hash, onced.downstream_key TO :role;
