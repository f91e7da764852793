//! Operator, sidecars and definitions against a real API server; the tests are in `tests/`.
