//! Block programs of nests, by their schedules.
//!
//! [`launch`] executes a schedule on a nest; [`row_program`] writes the loops over rows, [`emitter`] the instructions
//! of scalar programs, in a [`frame`] that has the coordinates of the tile. Never: chooses.

pub mod emitter;
pub mod frame;
pub mod launch;
pub mod math;
pub mod row_program;
pub mod row_run;
pub mod scatter;
pub mod staged_operands;
pub mod wide_rows;
