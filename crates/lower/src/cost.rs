//! Prices of schedules: what a launch is predicted to take, in closed form, from numbers alone.
//!
//! Nests: [`features`] has a nest in numbers, [`tiled_nest`] its tiles, [`tile_layout`] what threads hold of one,
//! [`footprint`] what an instance does, [`terms`] the time. Matmuls: [`mma`] and [`wgmma`], [`slices`] what
//! adds slices of K.
//! Never: chooses, or looks at a program. Figures of hardware are the machine's.

pub mod arithmetic;
pub mod features;
pub mod footprint;
pub mod instructions;
pub mod lanes;
pub mod library;
pub mod mma;
pub mod price;
pub mod registers;
pub mod slices;
pub mod terms;
pub mod tile_layout;
pub mod tiled_nest;
pub mod wgmma;
pub mod windows;
