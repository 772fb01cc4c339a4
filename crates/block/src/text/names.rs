//! Names of ops in the text form, for both directions.
use crate::{
    AtomicOp, BinaryOp, CachePolicy, CmpOp, LoadMode, MemoryOrder, Op, ReduceOp, ScanOp, Scope, Terms, UnaryOp,
};

pub const UNARY: &[(&str, UnaryOp)] = &[
    ("neg", UnaryOp::Neg),
    ("abs", UnaryOp::Abs),
    ("not", UnaryOp::Not),
    ("exp", UnaryOp::Exp),
    ("exp2", UnaryOp::Exp2),
    ("exp2_approx", UnaryOp::Exp2Approx),
    ("expm1", UnaryOp::Expm1),
    ("log", UnaryOp::Log),
    ("log2", UnaryOp::Log2),
    ("log10", UnaryOp::Log10),
    ("log1p", UnaryOp::Log1p),
    ("sqrt", UnaryOp::Sqrt),
    ("sqrt_rn", UnaryOp::SqrtRn),
    ("rsqrt", UnaryOp::Rsqrt),
    ("sin", UnaryOp::Sin),
    ("cos", UnaryOp::Cos),
    ("tan", UnaryOp::Tan),
    ("asin", UnaryOp::Asin),
    ("acos", UnaryOp::Acos),
    ("atan", UnaryOp::Atan),
    ("sinh", UnaryOp::Sinh),
    ("cosh", UnaryOp::Cosh),
    ("tanh", UnaryOp::Tanh),
    ("tanh_approx", UnaryOp::TanhApprox),
    ("erf", UnaryOp::Erf),
    ("gelu", UnaryOp::Gelu),
    ("floor", UnaryOp::Floor),
    ("ceil", UnaryOp::Ceil),
    ("round", UnaryOp::Round),
    ("trunc", UnaryOp::Trunc),
    ("tf32", UnaryOp::Tf32),
    ("is_nan", UnaryOp::IsNan),
    ("is_inf", UnaryOp::IsInf),
];
pub const BINARY: &[(&str, BinaryOp)] = &[
    ("add", BinaryOp::Add),
    ("sub", BinaryOp::Sub),
    ("mul", BinaryOp::Mul),
    ("div", BinaryOp::Div),
    ("rem", BinaryOp::Rem),
    ("div_rn", BinaryOp::DivRn),
    ("max", BinaryOp::Max),
    ("min", BinaryOp::Min),
    ("max_num", BinaryOp::MaxNum),
    ("min_num", BinaryOp::MinNum),
    ("mul_hi", BinaryOp::MulHi),
    ("pow", BinaryOp::Pow),
    ("atan2", BinaryOp::Atan2),
    ("and", BinaryOp::And),
    ("or", BinaryOp::Or),
    ("xor", BinaryOp::Xor),
    ("shl", BinaryOp::Shl),
    ("shr", BinaryOp::Shr),
];
pub const CMP: &[(&str, CmpOp)] =
    &[("eq", CmpOp::Eq), ("ne", CmpOp::Ne), ("lt", CmpOp::Lt), ("le", CmpOp::Le), ("gt", CmpOp::Gt), ("ge", CmpOp::Ge)];
pub const REDUCE: &[(&str, ReduceOp)] = &[
    ("sum", ReduceOp::Sum),
    ("prod", ReduceOp::Prod),
    ("max", ReduceOp::Max),
    ("min", ReduceOp::Min),
    ("max_num", ReduceOp::MaxNum),
    ("min_num", ReduceOp::MinNum),
    ("and", ReduceOp::And),
    ("or", ReduceOp::Or),
    ("argmax", ReduceOp::ArgMax),
    ("argmin", ReduceOp::ArgMin),
];
pub const ATOMIC: &[(&str, AtomicOp)] = &[
    ("atomic_add", AtomicOp::Add),
    ("atomic_max", AtomicOp::Max),
    ("atomic_min", AtomicOp::Min),
    ("atomic_and", AtomicOp::And),
    ("atomic_or", AtomicOp::Or),
    ("atomic_xor", AtomicOp::Xor),
    ("atomic_exchange", AtomicOp::Exchange),
];
pub const ORDER: &[(&str, MemoryOrder)] = &[
    ("acquire", MemoryOrder::Acquire),
    ("release", MemoryOrder::Release),
    ("acquire_release", MemoryOrder::AcquireRelease),
];
pub const SCOPE: &[(&str, Scope)] = &[("block", Scope::Block), ("system", Scope::System)];
/// What is summed in place of products.
pub const TERMS: &[(&str, Terms)] = &[("squares", Terms::Squares), ("distances", Terms::Distances)];
pub const SCAN: &[(&str, ScanOp)] = &[("sum", ScanOp::Sum), ("prod", ScanOp::Prod), ("max", ScanOp::Max)];

/// Policies of the caches, after the name of a load or a store.
pub const CACHE: &[(&str, CachePolicy)] = &[
    ("evict_first", CachePolicy::EvictFirst),
    ("evict_last", CachePolicy::EvictLast),
    ("l2_only", CachePolicy::L2Only),
];

/// Ops written as their name and operands only.
pub const PLAIN: &[(&str, Op)] = &[
    ("iota", Op::Iota),
    ("splat", Op::Splat),
    ("broadcast", Op::Broadcast),
    ("reshape", Op::Reshape),
    ("select", Op::Select),
    ("bitcast", Op::Bitcast),
    ("fma", Op::Fma),
    ("join", Op::Join),
    ("ptr_add", Op::PtrAdd),
    ("load", Op::Load(LoadMode::Vectors, CachePolicy::Normal)),
    ("load_apart", Op::Load(LoadMode::Apart, CachePolicy::Normal)),
    ("load_window", Op::Load(LoadMode::Window, CachePolicy::Normal)),
    ("store", Op::Store(CachePolicy::Normal)),
    ("yield", Op::Yield),
    ("tile_load", Op::TileLoad),
    ("tile_store", Op::TileStore),
    ("convert_layout", Op::ConvertLayout),
    ("alloc_shared", Op::AllocShared),
    ("shared_store", Op::SharedStore),
    ("shared_load", Op::SharedLoad),
    ("async_copy", Op::AsyncCopy),
    ("async_commit", Op::AsyncCommit),
    ("sync", Op::Sync),
    ("alloc_barriers", Op::AllocBarriers),
    ("barrier_wait", Op::BarrierWait),
    ("publish", Op::Publish),
    ("await", Op::Await),
    ("atomic_inc", Op::AtomicInc),
    ("tma_store", Op::TmaStore),
    ("fence_async", Op::FenceAsync),
    ("wgmma_token", Op::WgmmaToken),
    ("wgmma_commit", Op::WgmmaCommit),
    ("cluster_sync", Op::ClusterSync),
];

pub fn find<T: Clone>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|e| e.0 == name).map(|e| e.1.clone())
}
/// Name of an op that its table holds.
pub fn name_of<T: PartialEq>(table: &[(&'static str, T)], op: &T) -> Option<&'static str> {
    table.iter().find(|e| e.1 == *op).map(|e| e.0)
}
/// `a, b, c`, for messages.
pub fn list<T>(table: &[(&str, T)]) -> String {
    table.iter().map(|e| e.0).collect::<Vec<_>>().join(", ")
}
