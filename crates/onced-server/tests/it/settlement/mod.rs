//! How attempts end where the ending is not the plain one: answers too large to keep, clients that stop reading, apps
//! that change their record while the gateway decides, ledgers that break in the middle.

mod announced_call;
mod broken_ledger;
mod large_answers;
mod odd_requests;
