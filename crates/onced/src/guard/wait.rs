//! Waiting for an attempt that runs elsewhere: the record is looked at again and again, and once it is no longer in
//! progress the delivery begins afresh. Between two looks nothing is held, and a look takes nothing.

use std::future::Future;
use std::time::{Duration, Instant};

use super::begin::{self, Answer, Outcome};
use super::retry::random_unit;
use super::{Begun, Guard, GuardError, Permit, Request, Store};

/// The longest pause before the second look; it doubles with each one.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The longest pause of all.
const LAST_PAUSE: Duration = Duration::from_millis(500);
/// So much of a pause is left to chance, so that many who wait for one record do not look at once.
const JITTER: f64 = 0.2;

impl<S: Store> Guard<S> {
    /// As [`Guard::begin`], but where an attempt is running this waits up to `wait` for it to end, and then begins
    /// afresh, as any new delivery: it gets the outcome, or takes over what the other has left behind. Only then is
    /// the delivery logged, in one line. It answers [`Begun::InProgress`] where the time is over first; every other
    /// answer, [`Begun::Mismatch`] above all, comes at once.
    ///
    /// The record is looked at after 20 to 25 ms, and then ever more seldom, up to every 500 ms. Between the looks
    /// neither a connection nor a transaction is held. A `begin` that is on its way is not cut short, so the answer may
    /// come later than `wait` by as long as the store makes a claim wait.
    ///
    /// # Errors
    /// As [`Guard::begin`].
    ///
    /// # Cancel safety
    /// If the future is dropped while it waits, nothing has happened, and nothing is logged. While it begins, as
    /// [`Guard::begin`]; who wants to stop only the waiting uses [`Guard::begin_waiting_unless`].
    pub async fn begin_waiting(&self, request: &Request, wait: Duration) -> Result<Begun<Permit<S>>, GuardError> {
        self.begin_waiting_unless(request, wait, std::future::pending()).await
    }

    /// As [`Guard::begin_waiting`]; the waiting, and nothing else, ends early once `gone` is ready: for a caller whose
    /// client may hang up. It then answers, and logs, [`Begun::InProgress`]. `gone` is polled only between two looks,
    /// never while the store is being asked, so that no claim is ever left without an owner.
    ///
    /// # Errors
    /// As [`Guard::begin`].
    ///
    /// # Cancel safety
    /// As [`Guard::begin_waiting`].
    pub async fn begin_waiting_unless(
        &self,
        request: &Request,
        wait: Duration,
        gone: impl Future<Output = ()>,
    ) -> Result<Begun<Permit<S>>, GuardError> {
        let since = Instant::now();
        let mut asked = self.ask(request).await?;
        let received = Instant::now();
        let mut gone = std::pin::pin!(gone);
        for looks in 0.. {
            let left = wait.saturating_sub(since.elapsed());
            if left.is_zero() || !asked.outcome.is_in_progress() {
                break;
            }
            if looks == 0 {
                tracing::debug!(target: "onced::phase", phase = "waiting", scope = %request.scope, key = request.key.shortened());
            }
            tokio::select! {
                biased;
                () = &mut gone => break,
                () = tokio::time::sleep(pause(looks, random_unit()).min(left)) => {}
            }
            match self.still_in_progress(request).await {
                Some(answer) => asked.outcome = Outcome::Answer(answer),
                None => asked = self.ask(request).await?,
            }
        }
        Ok(self.tell(request, asked, received).await)
    }

    /// What the record says, if that is "in progress". Whatever else there may be to see, an error included, is for a
    /// new `begin` to find out.
    async fn still_in_progress(&self, request: &Request) -> Option<Answer> {
        let (_, answer) = begin::look(&mut self.store.clone(), request).await.ok()??;
        answer.is_in_progress().then_some(answer)
    }
}

/// How long to pause after so many looks; `unit_random` is in `0.0..1.0`.
pub(super) fn pause(looks: u32, unit_random: f64) -> Duration {
    let doubled = FIRST_PAUSE.checked_mul(1_u32.checked_shl(looks).unwrap_or(u32::MAX));
    let longest = doubled.unwrap_or(LAST_PAUSE).min(LAST_PAUSE);
    longest.mul_f64(1.0 - JITTER * unit_random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_the_last_and_a_fifth_of_each_is_chance() {
        let longest = |looks| pause(looks, 0.0).as_millis();
        assert_eq!([0, 1, 4, 5, 33, u32::MAX].map(longest), [25, 50, 400, 500, 500, 500]);
        assert_eq!((pause(0, 1.0), pause(9, 0.5)), (Duration::from_millis(20), Duration::from_millis(450)));
    }
}
