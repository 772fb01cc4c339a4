//! Operators that are another one under a second name: aliases, functional forms of views (`view_copy`), and operators
//! of libtorch whose arguments and results begin with those of a public one. They share its conversion; a fallback
//! keeps the name of the call.

/// Name, and the operator that it stands for.
const SYNONYMS: &[(&str, &str)] = &[
    // Aliases.
    ("aten::absolute", "aten::abs"),
    ("aten::arccos", "aten::acos"),
    ("aten::arccosh", "aten::acosh"),
    ("aten::arcsin", "aten::asin"),
    ("aten::arcsinh", "aten::asinh"),
    ("aten::arctan", "aten::atan"),
    ("aten::arctan2", "aten::atan2"),
    ("aten::arctanh", "aten::atanh"),
    ("aten::divide", "aten::div"),
    ("aten::float_power", "aten::pow"),
    ("aten::greater", "aten::gt"),
    ("aten::greater_equal", "aten::ge"),
    ("aten::less", "aten::lt"),
    ("aten::less_equal", "aten::le"),
    ("aten::linalg_matmul", "aten::matmul"),
    ("aten::multiply", "aten::mul"),
    ("aten::negative", "aten::neg"),
    ("aten::not_equal", "aten::ne"),
    ("aten::row_stack", "aten::vstack"),
    ("aten::special_exp2", "aten::exp2"),
    ("aten::special_expm1", "aten::expm1"),
    ("aten::special_log1p", "aten::log1p"),
    ("aten::special_logit", "aten::logit"),
    ("aten::special_logsumexp", "aten::logsumexp"),
    ("aten::special_round", "aten::round"),
    ("aten::special_sinc", "aten::sinc"),
    ("aten::special_xlogy", "aten::xlogy"),
    ("aten::subtract", "aten::sub"),
    // Tensors are real, and values have no memory.
    ("aten::conj", "aten::alias"),
    ("aten::conj_physical", "aten::alias"),
    ("aten::_conj", "aten::alias"),
    ("aten::_conj_physical", "aten::alias"),
    ("aten::lift", "aten::alias"),
    ("aten::mH", "aten::mT"),
    ("aten::matrix_H", "aten::mT"),
    ("aten::real", "aten::alias"),
    ("aten::resolve_conj", "aten::alias"),
    ("aten::resolve_neg", "aten::alias"),
    // Views that are copies.
    ("aten::_reshape_copy", "aten::reshape"),
    ("aten::alias_copy", "aten::alias"),
    ("aten::detach_copy", "aten::detach"),
    ("aten::diagonal_copy", "aten::diagonal"),
    ("aten::expand_copy", "aten::expand"),
    ("aten::narrow_copy", "aten::narrow"),
    ("aten::permute_copy", "aten::permute"),
    ("aten::select_copy", "aten::select"),
    ("aten::slice_copy", "aten::slice"),
    ("aten::split_copy", "aten::split"),
    ("aten::split_with_sizes_copy", "aten::split_with_sizes"),
    ("aten::squeeze_copy", "aten::squeeze"),
    ("aten::t_copy", "aten::t"),
    ("aten::transpose_copy", "aten::transpose"),
    ("aten::unbind_copy", "aten::unbind"),
    ("aten::unfold_copy", "aten::unfold"),
    ("aten::unsqueeze_copy", "aten::unsqueeze"),
    ("aten::view_copy", "aten::view"),
    // Those of libtorch itself, which skip checks or give more results.
    ("aten::_adaptive_avg_pool2d", "aten::adaptive_avg_pool2d"),
    ("aten::_adaptive_avg_pool3d", "aten::adaptive_avg_pool3d"),
    ("aten::_cdist_forward", "aten::cdist"),
    ("aten::_embedding_bag_forward_only", "aten::_embedding_bag"),
    ("aten::_unsafe_index", "aten::index"),
    ("aten::_unsafe_index_put", "aten::index_put"),
    ("aten::_weight_norm_interface", "aten::_weight_norm"),
    ("aten::cudnn_batch_norm", "aten::batch_norm"),
    ("aten::log_sigmoid_forward", "aten::log_sigmoid"),
    ("aten::native_channel_shuffle", "aten::channel_shuffle"),
    ("aten::nll_loss2d_forward", "aten::nll_loss"),
    ("aten::nll_loss_forward", "aten::nll_loss"),
];

/// The name under which the tables have an operator.
pub fn canonical(name: &str) -> &str {
    SYNONYMS.iter().find(|(synonym, _)| *synonym == name).map_or(name, |(_, means)| means)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::UnaryOp;

    #[test]
    fn each_synonym_is_of_an_operator_with_a_conversion_and_has_none_itself() {
        let handlers = super::super::handlers();
        let function = |name: &str| name.strip_prefix("aten::").is_some_and(|n| UnaryOp::of_torch(n).is_some());
        let converted = |name: &str| handlers.contains_key(name) || function(name);
        for (synonym, means) in SYNONYMS {
            assert!(converted(means), "{synonym}: there is no conversion of {means}");
            assert!(!converted(synonym), "{synonym} has a conversion of its own");
            let times = SYNONYMS.iter().filter(|(other, _)| other == synonym).count();
            assert_eq!((canonical(synonym), times), (*means, 1));
        }
    }
}
