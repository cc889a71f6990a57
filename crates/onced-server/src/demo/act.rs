//! The acts: what each shows, and what it must come to.

use super::Ledger;
use super::load::Tally;

/// How many senders have the same charge at the same moment.
pub(super) const BURST: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Burst,
    Redelivery,
    OtherBody,
    Slow,
    HangUp,
    LostAnswer,
    Agent,
    Kill,
}

impl Act {
    pub(super) const ALL: [Self; 8] = [
        Self::Burst,
        Self::Redelivery,
        Self::OtherBody,
        Self::Slow,
        Self::HangUp,
        Self::LostAnswer,
        Self::Agent,
        Self::Kill,
    ];

    /// Names the one operation of the act, in each request of it; also the key, where it has one.
    pub(super) fn reference(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Redelivery => "redelivery",
            Self::OtherBody => "other-body",
            Self::Slow => "slow",
            Self::HangUp => "hang-up",
            Self::LostAnswer => "lost-answer",
            Self::Agent => "agent",
            Self::Kill => "kill",
        }
    }

    pub(super) fn title(self, ledger: Ledger) -> &'static str {
        match (self, ledger) {
            (Self::Burst, _) => "one charge, 50 times at once",
            (Self::Redelivery, _) => "the same charge again",
            (Self::OtherBody, _) => "another amount, same key",
            (Self::Slow, _) => "a slow charge, sent again",
            (Self::HangUp, _) => "a client that hangs up",
            (Self::LostAnswer, _) => "a payout's answer is lost",
            (Self::Agent, _) => "an agent repeats a tool call",
            (Self::Kill, Ledger::With) => "gateway killed in mid-charge",
            (Self::Kill, Ledger::Without) => "app killed in mid-charge",
        }
    }

    /// What has been shown, in a line or two.
    pub(super) fn shows(self, ledger: Ledger) -> &'static str {
        match (self, ledger) {
            (Self::Burst, Ledger::With) => {
                "One is executed. The others are told at once that it is running; none waits."
            }
            (Self::Burst, Ledger::Without) => "Nobody sees that they are the same: each is executed.",
            (Self::Redelivery, Ledger::With) => "The stored answer comes again, byte for byte. The app is not asked.",
            (Self::Redelivery, Ledger::Without) => "It is executed again, key or no key.",
            (Self::OtherBody, Ledger::With) => "The key belongs to the first request. The changed one is refused.",
            (Self::OtherBody, Ledger::Without) => "Two amounts under one key: both are charged.",
            (Self::Slow, Ledger::With) => {
                "The provider takes 3 s, the lease is 2 s: heartbeats renew it. The retry waits, then gets the answer."
            }
            (Self::Slow, Ledger::Without) => {
                "The client loses patience and sends it again while the first is under way."
            }
            (Self::HangUp, Ledger::With) => {
                "The charge goes on without its client. The client's retry gets the answer."
            }
            (Self::HangUp, Ledger::Without) => "The charge goes on without its client. The client's retry is one more.",
            (Self::LostAnswer, Ledger::With) => {
                "Whether it was paid is not known, so nothing is sent again: it is held until a person has asked the bank."
            }
            (Self::LostAnswer, Ledger::Without) => "It was paid; only the answer was lost. The retry pays once more.",
            (Self::Agent, Ledger::With) => {
                "A new call id, and no key: the key is made from conversation, step and tool."
            }
            (Self::Agent, Ledger::Without) => "A new call id each time: for the tool they are two purchases.",
            (Self::Kill, Ledger::With) => {
                "SIGKILL while the provider has the call; started again. When the lease is over, the retry takes over\n     \
                 under the same downstream key, and the first attempt's transaction, come late, is rolled back."
            }
            (Self::Kill, Ledger::Without) => {
                "The provider has the call, the order is never written, the retry charges again."
            }
        }
    }

    /// How many orders and charges are right, however often it was sent.
    pub(super) fn wanted(self) -> (usize, usize) {
        match self {
            Self::LostAnswer => (0, 1),
            Self::Burst | Self::Redelivery | Self::OtherBody | Self::Slow | Self::HangUp | Self::Agent | Self::Kill => {
                (1, 1)
            }
        }
    }

    /// Whether the answers are what the gateway promises. Where a sender waits, how often it asks is its own affair.
    pub(super) fn answered_well(self, tally: &Tally) -> bool {
        let (busy, sent) = (tally.of("409"), tally.sent());
        let each_of = |words: &[&str]| words.iter().all(|word| tally.of(word) == 1);
        let good = match self {
            Self::Burst => each_of(&["201"]) && busy == BURST - 1 && sent == BURST,
            Self::Redelivery | Self::Agent => each_of(&["201", "replay"]) && sent == 2,
            Self::OtherBody => each_of(&["201", "422"]) && sent == 2,
            Self::Slow => each_of(&["201", "replay"]) && busy > 0 && sent == busy + 2,
            Self::HangUp => each_of(&["hung up", "replay"]) && sent == busy + 2,
            Self::LostAnswer => each_of(&["504", "replay"]) && busy > 0 && sent == busy + 2,
            Self::Kill => each_of(&["no answer", "201"]) && sent == busy + 2,
        };
        good && tally.different_successes() == 1
    }
}
