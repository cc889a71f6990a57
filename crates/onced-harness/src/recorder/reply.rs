//! What the recorder does with one call: when it takes effect, what it answers, and how the answer travels.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode};

/// How the answer travels, or fails to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Whole, with `Content-Length`.
    Sized,
    /// Whole, with `Transfer-Encoding: chunked`.
    Chunked,
    /// Chunked; each chunk of the list after the first waits for the gap.
    Stream {
        /// What is sent, piece by piece.
        chunks: Vec<Bytes>,
        /// The wait before each piece but the first.
        gap: Duration,
    },
    /// Declares more bytes than it sends, then closes the connection.
    CutOff {
        /// The `Content-Length`.
        declared: u64,
        /// How many bytes are sent; the body is repeated or padded with `x` to that length.
        sent: usize,
    },
    /// The connection is reset without an answer.
    Lost,
}

/// A point of a call at which it can be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Before the effect.
    BeforeEffect,
    /// After the effect and before the answer.
    BeforeAnswer,
}

/// Whether a call takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakesEffect {
    ByStatus,
    Always,
    Never,
}

/// What the recorder does with one call.
///
/// A call takes effect where its status is below 400; [`Reply::with_effect`] and [`Reply::without_effect`] say
/// otherwise.
#[derive(Clone, Debug)]
pub struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
    pub(crate) delivery: Delivery,
    pub(crate) delay_effect: Duration,
    pub(crate) delay_answer: Duration,
    pub(crate) holds: Vec<Moment>,
    takes_effect: TakesEffect,
}

impl Reply {
    /// `200 {"ok":true}` as `application/json`.
    #[must_use]
    pub fn ok() -> Self {
        Self::status(200).json(r#"{"ok":true}"#)
    }

    /// This status, no headers, no body.
    ///
    /// # Panics
    /// Where it is no status code.
    #[must_use]
    pub fn status(status: u16) -> Self {
        let Ok(status) = StatusCode::from_u16(status) else { panic!("{status} is no status code") };
        Self {
            status,
            headers: Vec::new(),
            body: Bytes::new(),
            delivery: Delivery::Sized,
            delay_effect: Duration::ZERO,
            delay_answer: Duration::ZERO,
            holds: Vec::new(),
            takes_effect: TakesEffect::ByStatus,
        }
    }

    /// Waits before its effect until [`Recorder::release`](crate::Recorder::release), then is as [`Reply::ok`].
    #[must_use]
    pub fn hang() -> Self {
        Self::ok().hold(Moment::BeforeEffect)
    }

    /// Takes effect, then the connection is reset without an answer.
    #[must_use]
    pub fn lose_answer() -> Self {
        Self::ok().delivery(Delivery::Lost)
    }

    /// Takes effect, declares `declared` bytes, sends `sent`, then closes the connection.
    #[must_use]
    pub fn cut_off(declared: u64, sent: usize) -> Self {
        Self::status(200).delivery(Delivery::CutOff { declared, sent })
    }

    /// Streams these chunks with a gap between them.
    #[must_use]
    pub fn stream<C: Into<Bytes>>(chunks: impl IntoIterator<Item = C>, gap: Duration) -> Self {
        let chunks = chunks.into_iter().map(Into::into).collect();
        Self::status(200).delivery(Delivery::Stream { chunks, gap })
    }

    /// Adds a header line; one name may come several times. The value goes out byte for byte.
    ///
    /// # Panics
    /// Where HTTP forbids the name or the value.
    #[must_use]
    pub fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        let (Ok(header), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value.as_ref())) else {
            panic!("header {name} cannot be sent")
        };
        self.headers.push((header, value));
        self
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body and `Content-Type: application/json`.
    #[must_use]
    pub fn json(self, body: impl Into<Bytes>) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    /// Sends the body with `Transfer-Encoding: chunked` instead of `Content-Length`.
    #[must_use]
    pub fn chunked(self) -> Self {
        self.delivery(Delivery::Chunked)
    }

    /// Sets how the answer travels.
    #[must_use]
    pub fn delivery(mut self, delivery: Delivery) -> Self {
        self.delivery = delivery;
        self
    }

    /// Waits this long before the effect.
    #[must_use]
    pub fn delay_effect(mut self, delay: Duration) -> Self {
        self.delay_effect = delay;
        self
    }

    /// Waits this long between the effect and the answer.
    #[must_use]
    pub fn delay_answer(mut self, delay: Duration) -> Self {
        self.delay_answer = delay;
        self
    }

    /// Waits at this moment until the call is released.
    #[must_use]
    pub fn hold(mut self, moment: Moment) -> Self {
        self.holds.push(moment);
        self
    }

    /// Takes effect whatever the status.
    #[must_use]
    pub fn with_effect(mut self) -> Self {
        self.takes_effect = TakesEffect::Always;
        self
    }

    /// Takes no effect whatever the status.
    #[must_use]
    pub fn without_effect(mut self) -> Self {
        self.takes_effect = TakesEffect::Never;
        self
    }

    pub(crate) fn takes_effect(&self) -> bool {
        match self.takes_effect {
            TakesEffect::ByStatus => self.status.as_u16() < 400,
            TakesEffect::Always => true,
            TakesEffect::Never => false,
        }
    }

    /// The same answer without what made its first delivery special.
    pub(crate) fn again(&self) -> Self {
        let delivery = match &self.delivery {
            Delivery::Lost | Delivery::CutOff { .. } | Delivery::Sized => Delivery::Sized,
            Delivery::Chunked => Delivery::Chunked,
            Delivery::Stream { chunks, .. } => Delivery::Stream { chunks: chunks.clone(), gap: Duration::ZERO },
        };
        let plain =
            Self { delay_effect: Duration::ZERO, delay_answer: Duration::ZERO, holds: Vec::new(), ..self.clone() };
        Self { delivery, ..plain }
    }
}
