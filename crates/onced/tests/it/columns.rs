//! What a record's columns take is held to by the database itself, whoever writes there: the rules stand in the schema.

use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use testkit::Backend;

use crate::bench::{Bench, Tested, fresh_key, line, of_backend};
use crate::plant;

#[tokio::test(flavor = "multi_thread")]
async fn a_column_takes_what_it_may_hold_and_nothing_else() {
    holds_its_columns::<SqliteStore>().await;
    holds_its_columns::<PgStore>().await;
    holds_its_columns::<MySqlStore>().await;
}

async fn holds_its_columns<S: Tested>() {
    let bench = Bench::<S>::new().await;
    let key = fresh_key();
    plant::line(&bench, &line("in-progress-alive"), &key).await;
    let (long_key, long_scope, bytes) = ("k".repeat(255), "s".repeat(96), "00".repeat(31));
    let blob = |hex: String| if S::BACKEND == Backend::Postgres { format!("'\\x{hex}'") } else { format!("x'{hex}'") };
    let text = |value: &str| format!("'{value}'");
    let mut cases = vec![
        ("key", text(&long_key), true),
        ("key", text(&format!("{long_key}k")), false),
        ("key", text("~"), true),
        ("key", text("a b!"), true),
        ("key", text(""), false),
        ("key", text(" a"), false),
        ("key", text("a "), false),
        ("key", text("a\nb"), false),
        ("key", text("a\n"), false),
        ("key", text("ä"), false),
        ("key", "NULL".to_owned(), false),
        ("scope", text(&long_scope), true),
        ("scope", text("acme:a.b_c/d@e-F9"), true),
        ("scope", text(""), false),
        ("scope", text("a b"), false),
        ("scope", text("a\n"), false),
        ("scope", text("ä"), false),
        ("scope", "NULL".to_owned(), false),
        ("request_hash", blob(format!("{bytes}ff")), true),
        ("request_hash", blob(bytes.clone()), false),
        ("request_hash", blob(format!("{bytes}ffff")), false),
        ("request_hash", "NULL".to_owned(), false),
        ("status", text("pending_external"), true),
        ("status", text("done"), false),
        ("status", "NULL".to_owned(), false),
        ("attempt", "0".to_owned(), true),
        ("attempt", "-1".to_owned(), false),
        ("attempt", "NULL".to_owned(), false),
        ("response_code", "100".to_owned(), true),
        ("response_code", "999".to_owned(), true),
        ("response_code", "99".to_owned(), false),
        ("response_code", "1000".to_owned(), false),
        ("response_code", "NULL".to_owned(), true),
        ("lease_until", "NULL".to_owned(), false),
    ];
    if S::BACKEND == Backend::Postgres {
        cases.extend([
            ("scope", text(&format!("{long_scope}s")), false),
            ("scope", text(&format!("{long_scope}#{}", "t".repeat(30))), true),
            ("scope", text(&format!("a#{}", "t".repeat(31))), false),
            ("scope", text(&format!("{long_scope}s#t")), false),
            ("scope", text("a#"), false),
            ("scope", text("#t"), false),
            ("scope", text("a#b#c"), false),
        ]);
    }
    for (column, value, taken) in cases {
        let mut tx = bench.store.transaction().await.unwrap();
        let set = format!("UPDATE {{keys}} SET {column} = {value} WHERE key = '{}'", key.as_str());
        let done = S::run(&mut tx, &of_backend(S::BACKEND, &set)).await;
        assert_eq!(done.is_ok(), taken, "{:?}: {column} = {value}: {done:?}", S::BACKEND);
        tx.rollback().await.unwrap();
    }
}
