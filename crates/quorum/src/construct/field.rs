//! Finite fields of prime-power order.
