//! Fresh databases on all backends.

use testkit::{Backend, Database, SqlText, mariadb, postgres};

#[tokio::test]
async fn each_database_is_fresh_and_speaks_plain_sql() {
    for backend in Backend::ALL {
        let database = Database::create(backend).await;
        let sql = database.sql();
        let create = SqlText::each(
            "CREATE TABLE t (n INTEGER, s TEXT, b BLOB); CREATE TABLE u (n INTEGER)",
            "CREATE TABLE t (n bigint, s text, b bytea); CREATE TABLE u (n bigint)",
            "CREATE TABLE t (n bigint, s text, b blob); CREATE TABLE u (n bigint)",
        );
        sql.execute(create).await;
        let insert = SqlText::each(
            "INSERT INTO t VALUES (1, 'é', x'00ff'), (2, NULL, NULL)",
            r"INSERT INTO t VALUES (1, 'é', '\x00ff'), (2, NULL, NULL)",
            "INSERT INTO t VALUES (1, 'é', x'00ff'), (2, NULL, NULL)",
        );
        assert_eq!(sql.execute(insert).await, 2, "{backend:?}");
        assert_eq!(sql.count("SELECT count(*) FROM t").await, 2);
        let bytes = match backend {
            Backend::Sqlite | Backend::MariaDb => "x'00ff'",
            Backend::Postgres => r"\x00ff",
        };
        let rows = sql.text("SELECT n, s, b FROM t ORDER BY n").await;
        assert_eq!(rows, [["1", "é", bytes], ["2", "NULL", "NULL"]], "{backend:?}");
        sql.try_execute("SELECT * FROM missing").await.expect_err("there is no such table");

        let other = Database::create(backend).await;
        assert_ne!(other.url(), database.url());
        other.sql().execute("CREATE TABLE t (n INTEGER)").await;
        assert_eq!((other.backend(), other.sql().count("SELECT count(*) FROM t").await), (backend, 0));
    }
}

#[tokio::test]
async fn a_dropped_database_is_gone() {
    let sqlite = Database::create(Backend::Sqlite).await;
    let folder = sqlite.folder().expect("SQLite has a folder").to_owned();
    drop(sqlite);
    assert!(!folder.exists());

    let gone = postgres::Database::create().await;
    let name = gone.name().to_owned();
    drop(gone);
    let other = Database::create(Backend::Postgres).await;
    let query = format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'");
    assert_eq!(other.sql().count(&query).await, 0);

    // A session that is still inside does not keep it.
    let gone = mariadb::Database::create().await;
    let (name, pool) = (gone.name().to_owned(), gone.pool().await);
    let _open = pool.begin().await.expect("a transaction opens");
    drop(gone);
    let other = Database::create(Backend::MariaDb).await;
    let query = format!("SELECT count(*) FROM information_schema.schemata WHERE schema_name = '{name}'");
    assert_eq!(other.sql().count(&query).await, 0);
}

#[tokio::test]
async fn the_servers_are_as_crash_tests_need_them() {
    let database = Database::create(Backend::Postgres).await;
    let settings = "SELECT current_setting('fsync'), current_setting('max_connections')";
    assert_eq!(database.sql().text(settings).await, [["on", "800"]]);

    let database = Database::create(Backend::MariaDb).await;
    let settings = "SELECT @@innodb_flush_log_at_trx_commit, @@max_connections";
    assert_eq!(database.sql().text(settings).await, [["1", "300"]]);
}
