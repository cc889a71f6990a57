//! The statements, from their files, with the schema's name put in.

use std::borrow::Cow;
use std::sync::Arc;

use sqlx::{SqlSafeStr, SqlStr};

/// The schema that the statement files are written for.
pub(super) const SCHEMA: &str = "onced";

macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// Every statement of the backend.
        pub(super) struct Statements { $(pub(super) $name: SqlStr),* }

        impl Statements {
            pub(super) fn new(schema: &str) -> Self {
                Self { $($name: to_sql(in_schema(include_str!(concat!("sql/", stringify!($name), ".sql")), schema))),* }
            }
        }
    };
}

statements!(
    claim,
    find,
    take,
    replace,
    give_up,
    complete,
    fail,
    external,
    renew,
    release,
    step_begun,
    step_ended,
    log_deliveries,
    answer_deliveries,
    deliveries_of,
    check,
    list,
    audit_of,
    resolve_happened,
    resolve_did_not_happen,
    sweep_keys,
    sweep_deliveries,
    due,
    settings,
    database_time,
    unfinished,
    overdue,
    growth,
    repeats,
);

/// A statement file's text, for that schema. The name has been checked to need no quotes.
pub(super) fn in_schema(text: &'static str, schema: &str) -> Cow<'static, str> {
    if schema == SCHEMA {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.replace("onced.", &format!("{schema}.")).replace("SCHEMA onced", &format!("SCHEMA {schema}")))
    }
}

fn to_sql(text: Cow<'static, str>) -> SqlStr {
    match text {
        Cow::Borrowed(text) => text.into_sql_str(),
        Cow::Owned(text) => sqlx::AssertSqlSafe(Arc::<str>::from(text)).into_sql_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_schema_is_put_into_every_name() {
        assert_eq!(in_schema("SELECT FROM onced.deliveries", "ledger"), "SELECT FROM ledger.deliveries");
        assert!(matches!(in_schema("SELECT FROM onced.deliveries", "onced"), Cow::Borrowed(_)));
    }
}
