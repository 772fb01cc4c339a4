//! Graph interpreter.
