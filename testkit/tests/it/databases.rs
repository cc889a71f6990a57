//! Fresh databases on both backends.

use testkit::{Backend, Database, SqlText, postgres};

#[tokio::test]
async fn each_database_is_fresh_and_speaks_plain_sql() {
    for backend in Backend::ALL {
        let database = Database::create(backend).await;
        let sql = database.sql();
        let create = SqlText::each(
            "CREATE TABLE t (n INTEGER, s TEXT, b BLOB); CREATE TABLE u (n INTEGER)",
            "CREATE TABLE t (n bigint, s text, b bytea); CREATE TABLE u (n bigint)",
        );
        sql.execute(create).await;
        let insert = SqlText::each(
            "INSERT INTO t VALUES (1, 'é', x'00ff'), (2, NULL, NULL)",
            r"INSERT INTO t VALUES (1, 'é', '\x00ff'), (2, NULL, NULL)",
        );
        assert_eq!(sql.execute(insert).await, 2, "{backend:?}");
        assert_eq!(sql.count("SELECT count(*) FROM t").await, 2);
        let bytes = match backend {
            Backend::Sqlite => "x'00ff'",
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
}

#[tokio::test]
async fn the_server_is_as_crash_tests_need_it() {
    let database = Database::create(Backend::Postgres).await;
    let settings = "SELECT current_setting('fsync'), current_setting('max_connections')";
    assert_eq!(database.sql().text(settings).await, [["on", "800"]]);
}
