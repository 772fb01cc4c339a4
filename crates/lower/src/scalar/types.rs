//! Element types of block programs for the types of a graph.
use kiln_block::Elem;
use kiln_graph::DType;

/// Element of a buffer of this dtype.
pub fn stored(d: DType) -> Elem {
    match d {
        DType::F64 => Elem::F64,
        DType::F32 => Elem::F32,
        DType::F16 => Elem::F16,
        DType::Bf16 => Elem::Bf16,
        DType::F8e4m3 => Elem::F8e4m3,
        DType::F8e5m2 => Elem::F8e5m2,
        DType::I64 => Elem::I64,
        DType::I32 => Elem::I32,
        DType::I16 => Elem::I16,
        DType::I8 => Elem::I8,
        DType::U8 => Elem::U8,
        DType::Bool => Elem::Bool,
    }
}
/// Element that values of this dtype are computed in.
pub fn held(d: DType) -> Elem {
    stored(d.compute())
}
