//! What is known of the accesses of a launch: what the planner needs to fuse elementwise neighbours into its loads and
//! stores, and to price it. Lowering finds it, since it binds programs.

/// Accesses of a launch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LaunchAccess {
    /// By operand of the node.
    pub operands: Vec<TensorAccess>,
    /// By result.
    pub results: Vec<TensorAccess>,
    /// Flops of dots (2·M·N·K).
    pub dot_flops: f64,
    /// The name of the element type that dots multiply.
    pub dot_type: &'static str,
    /// Elements that other arithmetic computes.
    pub other_flops: f64,
}

/// How a program accesses one tensor.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorAccess {
    /// Whether elementwise ops can take the place of its loads (of an operand), or follow its stores (of a result).
    pub fusable: Result<(), Unfusable>,
    /// Elements that are loaded or stored, as often as they are.
    pub elements: f64,
    /// Whether dots multiply what is loaded, as it is.
    pub is_multiplied: bool,
}

/// Why neighbours do not fuse into the accesses of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unfusable {
    /// Elements are updated: by atomics, or in a copy of an operand.
    Updated,
    /// The program loads what it stored.
    ReadBack,
    /// Offsets or masks are computed from what is loaded, or are not affine.
    NotAffine,
    /// Not every element of the result is stored.
    PartlyStored,
    /// Too many accesses to follow.
    TooMany,
}
