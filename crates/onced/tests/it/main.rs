//! The conformance suite of the library: what the protocol promises, on every backend.
//!
//! `conformance.txt` lists the cases that all backends share; the test `conformance::every_case_of_the_list_passes_on_every_backend`
//! runs all of them and says how many there are. The other tests show what one backend alone has, or what is no row
//! of a table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

/// A test of each name: that function on each database, one after the other.
macro_rules! on_all {
    ($($name:ident => $of:ident;)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            $of::<onced::store::sqlite::SqliteStore>().await;
            $of::<onced::store::postgres::PgStore>().await;
            $of::<onced::store::mysql::MySqlStore>().await;
        })*
    };
}

mod atomic;
mod axum_app;
mod axum_cases;
mod axum_example;
mod axum_layer;
mod axum_layer_routes;
mod axum_leased;
mod axum_leased_app;
mod begin_tx;
mod bench;
mod cancelled;
mod columns;
mod conformance;
mod decisions;
mod deliveries;
mod durability;
mod edges;
mod endings;
mod functions;
mod functions_calls;
mod functions_page;
mod functions_rights;
mod health;
mod heartbeat;
mod isolation;
mod known;
mod lost_replies;
mod many;
mod mariadb;
mod migrations;
mod modes_page;
mod nameless;
mod new_postgres;
mod onlooked;
mod plant;
mod pooler_check;
mod proxy;
mod races;
mod rival;
mod rival_process;
mod rolled_back;
mod silence;
mod slow_owner;
mod statements;
mod steps;
mod sweep;
mod takings;
mod through_pooler;
mod transient;
mod upkeep;
mod vanishing;
mod waiting;
