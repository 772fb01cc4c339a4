//! Block-program interpreter.
