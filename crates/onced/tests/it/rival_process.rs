//! A rival in another process: this test binary, started once more, that does as it is told line by line.
//!
//! Told `hold LINE KEY` it begins in an open transaction and answers `holding`; `let-go` rolls that back. Told
//! `race LINE KEY COUNT` it answers `ready`, and upon `go` begins that often at once and answers `won COUNT`. Told
//! `migrate` it brings the schema up to date and answers `migrated`. It ends with its input.

use std::io::BufRead as _;
use std::process::Stdio;

use onced::guard::Guard;
use onced::store::deliveries::LogDeliveries;
use onced::store::mysql::MySqlStore;
use onced::store::postgres::PgStore;
use onced::store::sqlite::SqliteStore;
use onced_core::key::Key;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::bench::{LIMIT, Tested, line, patient, request_of};
use crate::functions::{self, SqlFunctions};
use crate::{races, steps};

/// Set in the other process alone: the URL of the database.
const VARIABLE: &str = "ONCED_TEST_RIVAL";
/// What answers begin with; the test harness prints lines of its own.
const MARK: &str = "rival: ";

/// The other process, as this one sees it. Killed when dropped.
pub(crate) struct RivalProcess {
    _child: Child,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl RivalProcess {
    pub(crate) fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["rival_process::a_rival_process_answers_and_ends_with_its_input", "--exact", "--nocapture"])
            .env(VARIABLE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { _child: child, commands, answers: BufReader::new(answers).lines() }
    }

    /// Says a command and waits for the answer.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        self.commands.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        let answer = async {
            loop {
                let said = self.answers.next_line().await.unwrap().expect("the rival has ended");
                if let Some((_, answer)) = said.split_once(MARK) {
                    return answer.to_owned();
                }
            }
        };
        tokio::time::timeout(LIMIT, answer).await.unwrap_or_else(|_| panic!("no answer to: {command}"))
    }
}

/// In the other process: what it does. In this one: that it can be started, spoken to and ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rival_process_answers_and_ends_with_its_input() {
    match std::env::var(VARIABLE) {
        Ok(url) if url.starts_with("sqlite:") => serve::<SqliteStore>(&url).await,
        Ok(url) if url.starts_with("mysql:") => serve::<MySqlStore>(&url).await,
        Ok(url) => match url.strip_prefix(functions::MARK) {
            Some(url) => serve::<SqlFunctions>(url).await,
            None => serve::<PgStore>(&url).await,
        },
        Err(_) => {
            let database = testkit::Database::create(testkit::Backend::Sqlite).await;
            let mut rival = RivalProcess::start(database.url());
            assert_eq!(rival.ask("migrate").await, "migrated");
            assert_eq!(rival.ask("dance").await, "not understood");
            let RivalProcess { mut _child, commands, .. } = rival;
            drop(commands);
            assert!(tokio::time::timeout(LIMIT, _child.wait()).await.unwrap().unwrap().success());
        }
    }
}

async fn serve<S: Tested>(url: &str) {
    let store = S::open_at(url, &patient()).await.unwrap();
    let guard = Guard::new(store.clone(), LogDeliveries::Off);
    let mut commands = commands();
    let mut held: Option<S::Tx> = None;
    let mut working = None;
    while let Some(command) = commands.recv().await {
        let words: Vec<&str> = command.split(' ').collect();
        let answer = match words.as_slice() {
            ["hold", name, key] => {
                let mut tx = store.transaction().await.unwrap();
                S::deliver_tx(&guard, &mut tx, &request_of(&line(name), &Key::new(key).unwrap())).await;
                held = Some(tx);
                "holding".to_owned()
            }
            ["let-go"] => {
                if let Some(tx) = held.take() {
                    tx.rollback().await.unwrap();
                }
                "let go".to_owned()
            }
            ["race", name, key, count] => {
                say("ready");
                assert_eq!(commands.recv().await.as_deref(), Some("go"));
                let request = request_of(&line(name), &Key::new(key).unwrap());
                let begun = races::at_once(&guard, &request, count.parse().unwrap()).await;
                format!("won {}", begun.iter().filter(|begun| begun.executes()).count())
            }
            // Works on until it is killed.
            ["work", key, step, point] => {
                working = steps::work(&guard, &Key::new(key).unwrap(), Some((step, point))).await;
                format!("{point} {step}")
            }
            ["migrate"] => match store.bring_up_to_date().await {
                Ok(()) => "migrated".to_owned(),
                Err(error) => format!("refused: {error}"),
            },
            _ => "not understood".to_owned(),
        };
        say(&answer);
    }
    drop(working);
}

fn say(answer: &str) {
    // The test harness may have left its own line unfinished.
    println!("\n{MARK}{answer}");
}

/// Lines of the standard input, read on a thread of their own.
fn commands() -> mpsc::UnboundedReceiver<String> {
    let (told, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for command in std::io::stdin().lock().lines().map_while(Result::ok) {
            if told.send(command).is_err() {
                return;
            }
        }
    });
    commands
}
