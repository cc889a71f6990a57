//! A pooler is there while it is held, before the server of the test run, and gone afterwards.

use sqlx::{Connection as _, PgConnection, Row as _};
use testkit::pgbouncer::{PgBouncer, PoolOptions};
use testkit::{Backend, Database};

#[tokio::test]
async fn a_pooler_serves_any_database_and_ends_when_it_is_dropped() {
    let pooler = PgBouncer::start(PoolOptions::transaction());
    let mut urls = Vec::new();
    for _ in 0..2 {
        let database = Database::create(Backend::Postgres).await;
        let url = format!("{}?sslmode=disable", pooler.url(database.url()));
        let options: sqlx::postgres::PgConnectOptions = url.parse().unwrap();
        let options = options.extra_float_digits(None);
        let mut client = PgConnection::connect_with(&options).await.unwrap();
        let asked = sqlx::raw_sql("SELECT current_database()::text AS name").fetch_one(&mut client).await.unwrap();
        assert!(database.url().ends_with(asked.get::<&str, _>("name")));
        urls.push(options);
    }
    drop(pooler);
    let gone = PgConnection::connect_with(&urls[0]).await.unwrap_err();
    assert!(matches!(gone, sqlx::Error::Io(_)), "{gone}");
}
