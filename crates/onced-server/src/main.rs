//! `onced`, the gateway and its tools. This file only reads the command line and hands on.

mod app;
mod cli;
mod config;
mod demo;
mod logging;
mod maintenance;
mod proxy;
mod server;
mod sockets;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let command = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("onced: the runtime cannot be started: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(command.run()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("onced: {error:#}");
            ExitCode::FAILURE
        }
    }
}
