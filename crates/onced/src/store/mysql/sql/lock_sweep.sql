-- Hold the lock of who sweeps, until the transaction ends. Never waits: 1205 means that another sweeps.
SELECT name FROM onced_locks WHERE name = 'sweep' FOR UPDATE NOWAIT;
