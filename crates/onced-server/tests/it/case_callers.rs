//! Reported cases about callers: many at once, one after a failure, one with another request, one that everybody wants.
//! Each stands for a fault that users of such systems have reported in public; its file says what happens and what is
//! right. `R` counts how often the upstream ran, by its own log; `B` counts orders, by SQL past our code.

mod o_01;
mod o_06;
mod o_12;
mod o_13;
mod o_29;
