-- How the library and this connection are set.
SELECT sqlite_version() AS version, (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode,
       (SELECT synchronous FROM pragma_synchronous) AS synchronous,
       coalesce((SELECT file FROM pragma_database_list WHERE name = 'main'), '') AS file;
