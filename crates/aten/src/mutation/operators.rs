//! In-place operators by name: which they are, their functional form, and the dtype that it gives.
use crate::{
    convert::{
        context::scalar_of,
        scalars::{Weight, common_type, number_type},
    },
    raw::{Arg, Call, RawInfo},
};
use kiln_graph::DType;

/// Operators that change a tensor's shape or memory rather than its elements.
const CHANGES_SHAPE: [&str; 16] = [
    "resize_",
    "resize_as_",
    "set_",
    "squeeze_",
    "unsqueeze_",
    "transpose_",
    "swapaxes_",
    "swapdims_",
    "t_",
    "as_strided_",
    "swap_",
    "rename_",
    "sparse_resize_",
    "sparse_resize_and_clear_",
    "_resize_output_",
    "_coalesced_",
];

/// Operators with a bool result, whose in-place form casts it to the tensor's dtype.
const GIVES_BOOL: [&str; 16] = [
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "isclose",
];

/// Operators whose first two operands are promoted to a common dtype.
const PROMOTES_TWO: [&str; 34] = [
    "add",
    "sub",
    "subtract",
    "mul",
    "multiply",
    "div",
    "divide",
    "true_divide",
    "floor_divide",
    "remainder",
    "fmod",
    "pow",
    "atan2",
    "arctan2",
    "hypot",
    "copysign",
    "xlogy",
    "nextafter",
    "gcd",
    "lcm",
    "ldexp",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
    "__and__",
    "__or__",
    "__xor__",
    "clamp_min",
    "clamp_max",
    "heaviside",
    "igamma",
    "igammac",
];

/// Operators whose first three operands are promoted to a common dtype.
const PROMOTES_THREE: [&str; 5] = ["addr", "addcmul", "addcdiv", "clamp", "clip"];

/// Operators whose in-place form has another overload name than the functional one, both with the overload.
const RENAMED: [[&str; 4]; 7] = [
    ["normal_", "", "normal_functional", ""],
    ["bernoulli_", "float", "bernoulli", "p"],
    ["pow_", "Scalar", "pow", "Tensor_Scalar"],
    ["pow_", "Tensor", "pow", "Tensor_Tensor"],
    ["float_power_", "Scalar", "float_power", "Tensor_Scalar"],
    ["float_power_", "Tensor", "float_power", "Tensor_Tensor"],
    ["ldexp_", "", "ldexp", "Tensor"],
];

/// What a call does to the tensor that is its first argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Nothing: the result is the tensor.
    None,
    /// It writes the result of this operator and overload, which takes the same arguments.
    Functional(String, String),
    /// Its shape or memory.
    Shape,
    /// It writes other arguments than the first.
    Others,
}

/// The functional form of an in-place operator, with its overload: `aten::add_.Tensor` is `aten::add.Tensor`. It takes
/// the same arguments. `None` if the operator is not in place.
pub fn functional_form(name: &str, overload: &str) -> Option<(String, String)> {
    let op = name.strip_prefix("aten::")?;
    if let Some(inner) = op.strip_prefix("__").and_then(|s| s.strip_suffix("__")) {
        let binary = inner.strip_prefix('i').filter(|b| ["and", "or", "xor", "lshift", "rshift"].contains(b))?;
        return Some((format!("aten::__{binary}__"), overload.into()));
    }
    if let Some([.., name, overload]) = RENAMED.iter().find(|[n, o, ..]| (*n, *o) == (op, overload)) {
        return Some((format!("aten::{name}"), (*overload).into()));
    }
    let base = op.strip_suffix('_').filter(|b| !b.is_empty() && !b.ends_with('_'))?;
    Some((format!("aten::{base}"), overload.into()))
}

/// What a call changes; `None` if it changes nothing and its results are new tensors or views.
pub fn change(call: &Call) -> Option<Change> {
    if call.overload == "out" || call.overload.ends_with("_out") {
        return Some(Change::Others);
    }
    let (name, overload) = functional_form(&call.name, &call.overload)?;
    let op = call.name.strip_prefix("aten::")?;
    Some(match op {
        "requires_grad_" | "detach_" => Change::None,
        "dropout_" | "feature_dropout_" | "alpha_dropout_" | "feature_alpha_dropout_" if keeps_all(call) => {
            Change::None
        }
        _ if CHANGES_SHAPE.contains(&op) => Change::Shape,
        _ if op.starts_with("_foreach_") || op.starts_with("_fused_") || op.starts_with("_amp_") => Change::Others,
        _ => Change::Functional(name, overload),
    })
}

/// Whether a dropout `(x, p, train)` keeps all elements, so that torch returns its operand.
pub fn keeps_all(call: &Call) -> bool {
    call.args.get(2) == Some(&Arg::Bool(false))
        || call.args.get(1).and_then(scalar_of).is_some_and(|p| p.as_f64() == 0.0)
}

/// The dtype that the functional form `name` of a call gives, by its name in Kiln; the tensor is of `own`.
pub fn result_dtype(name: &str, call: &Call, own: &RawInfo, values: &[RawInfo]) -> String {
    let op = name.strip_prefix("aten::").unwrap_or(name);
    if GIVES_BOOL.contains(&op) {
        return DType::Bool.name().into();
    }
    let promoted = match op {
        _ if PROMOTES_TWO.contains(&op) => 2,
        _ if PROMOTES_THREE.contains(&op) => 3,
        // Sums and products of integers are i64, unless the call names a dtype. The low bits are the same.
        "cumsum" | "cumprod" if !matches!(call.args.get(2), Some(Arg::Int(_))) => 1,
        _ => return own.dtype.clone(),
    };
    if own.dtype.parse::<DType>().is_err() {
        // Such as complex; converting the call gives the problem.
        return own.dtype.clone();
    }
    let operand = |a: &Arg| match a {
        Arg::Value(id) => {
            let info = values.get(*id)?;
            Some((Weight::of_rank(info.shape.len()), info.dtype.parse().ok()?))
        }
        a => scalar_of(a).map(|s| (Weight::Number, number_type(s))),
    };
    let common = common_type(call.args.iter().take(promoted).filter_map(operand));
    let common = common.map(|d| if promoted == 1 && !d.is_float() { DType::I64 } else { d });
    common.map_or_else(|| own.dtype.clone(), |d| d.name().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_place_operators_by_name() {
        let form = |name: &str, overload: &str| {
            functional_form(&format!("aten::{name}"), overload).map(|(n, o)| format!("{}.{o}", &n["aten::".len()..]))
        };
        assert_eq!(form("add_", "Tensor").as_deref(), Some("add.Tensor"));
        assert_eq!(form("__iand__", "Scalar").as_deref(), Some("__and__.Scalar"));
        assert_eq!(form("pow_", "Scalar").as_deref(), Some("pow.Tensor_Scalar"));
        assert_eq!(form("normal_", "").as_deref(), Some("normal_functional."));
        for functional in ["add", "__and__", "__index__", "_", "__", "_unsafe_view"] {
            assert_eq!(form(functional, "Tensor"), None, "{functional}");
        }
        assert_eq!(functional_form("mine::add_", ""), None);
    }
}
