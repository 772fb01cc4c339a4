//! A body as one scalar program over a space: how one element of each output is computed, with every view folded into
//! index expressions.
//!
//! A value is resolved at a vector of index expressions ([`resolve`]), which makes nodes of a [`dag`]; the [`space`] is
//! split and merged until the expressions ([`expr`]) are affine. Never: tiles, schedules, instructions.

pub mod composite;
pub mod dag;
pub mod epilogue_map;
pub mod expr;
pub mod invert;
pub mod key_range;
pub mod mask_value;
pub mod resolve;
pub mod row;
pub mod scores;
pub mod space;
pub mod types;
pub mod window;
