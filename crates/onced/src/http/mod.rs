//! (respond)
