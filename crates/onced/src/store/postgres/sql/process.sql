/* onced {name} */
-- Which process of which server answers: the number alone could be another server's, behind the same name. And whether
-- the process of another connection has done anything since that asked for the last time, which begins as above; where
-- its statements are not to be seen, nobody can tell. Sent by the plain protocol, with the names put in.
SELECT own.process,
       coalesce((SELECT bool_or(state IN ('active', 'idle', 'idle in transaction')
                                AND query NOT LIKE '/* onced {others_name} */%')
                   FROM pg_stat_activity
                  WHERE pid::text || '@' || own.server = '{others_process}'), false)::text AS was_taken
  FROM (SELECT server, pg_backend_pid()::text || '@' || server AS process
          FROM (SELECT extract(epoch FROM pg_postmaster_start_time())::text AS server) s) own;
