//! Operators that torch.export writes and Kiln knows in another form: their parameters and defaults.
use kiln_aten::raw::Arg;

/// Operators that are converted, but that a graph may not leave to libtorch: parameters with their defaults, as in
/// torch's schemas.
const CONVERTED_ONLY: &str = "_batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps)
_cdist_forward(x1, x2, p, compute_mode)
_conj(self)
_embedding_bag(weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=-1)
_embedding_bag_forward_only(weight, indices, offsets, scale_grad_by_freq=False, mode=0, sparse=False, per_sample_weights=None, include_last_offset=False, padding_idx=-1)
_native_batch_norm_legit.no_stats(input, weight, bias, training, momentum, eps)
_native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps)
_scaled_dot_product_cudnn_attention(query, key, value, attn_bias, compute_log_sumexp, dropout_p=0., is_causal=False, return_debug_mask=False, scale=None)
_scaled_dot_product_flash_attention(query, key, value, dropout_p=0., is_causal=False, return_debug_mask=False, scale=None)
_scaled_dot_product_fused_attention_overrideable(query, key, value, attn_bias=None, dropout_p=0., is_causal=False, return_debug_mask=False, scale=None)
_thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None)
_thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None)
_unsafe_index.Tensor(self, indices)
_unsafe_index_put(self, indices, values, accumulate=False)
_unsafe_masked_index(self, mask, indices, fill)
conj(self)
cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon)
as_strided(self, size, stride, storage_offset=None)
embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
empty_permuted(size, physical_layout, dtype=None, layout=None, device=None, pin_memory=None)
empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None)
lift(self)
native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
new_empty_strided(self, size, stride, dtype=None, layout=None, device=None, pin_memory=None)
real(self)
imag(self)
view_as_complex(self)
view_as_complex_copy(self)
view_as_real(self)
polar(abs, angle)
complex(real, imag)
_unsafe_view(self, size)
copy_(self, src, non_blocking=False)
zero_(self)
lift_fresh(self)
lift_fresh_copy(self)
empty_like(self, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None)
empty.memory_format(size, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None)
new_empty(self, size, dtype=None, layout=None, device=None, pin_memory=None)
unsafe_split.Tensor(self, split_size, dim=0)
unsafe_split_with_sizes(self, split_sizes, dim=0)
unsafe_chunk(self, chunks, dim=0)
to.dtype_layout(self, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, copy=False, memory_format=None)
to.device(self, device, dtype, non_blocking=False, copy=False, memory_format=None)
_fused_rms_norm(input, normalized_shape, weight, eps)
_scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False)";

/// The parameters of an operator of [`CONVERTED_ONLY`].
pub fn converted_only(operator: &str, overload: &str) -> Option<Vec<(&'static str, Option<&'static str>)>> {
    let full = if overload.is_empty() { operator.to_string() } else { format!("{operator}.{overload}") };
    let parameters =
        CONVERTED_ONLY.lines().find_map(|l| l.strip_prefix(&full)?.strip_prefix('(')?.strip_suffix(')'))?;
    let parameter = |p: &'static str| p.split_once('=').map_or((p, None), |(name, default)| (name, Some(default)));
    Some(parameters.split(", ").map(parameter).collect())
}

/// The value of a default as a schema writes it.
pub fn default_value(text: &str) -> Arg {
    let list = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    if let Some(items) = list {
        let items: Vec<Arg> = items.split(',').map(str::trim).filter(|t| !t.is_empty()).map(default_value).collect();
        let ints: Option<Vec<i64>> = items.iter().map(|a| if let Arg::Int(n) = a { Some(*n) } else { None }).collect();
        return ints.map_or(Arg::List(items), Arg::Ints);
    }
    match (text, text.parse::<i64>(), text.parse::<f64>()) {
        ("None", ..) => Arg::None,
        ("True", ..) => Arg::Bool(true),
        ("False", ..) => Arg::Bool(false),
        (_, Ok(n), _) => Arg::Int(n),
        (_, _, Ok(x)) => Arg::Float(x),
        _ => Arg::Str(text.trim_matches('"').to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::fallback;

    #[test]
    fn defaults_read_as_schemas_write_them() {
        for (text, value) in [
            ("None", Arg::None),
            ("True", Arg::Bool(true)),
            ("-1", Arg::Int(-1)),
            ("1.0000000000000001e-05", Arg::Float(1e-5)),
            ("0.", Arg::Float(0.0)),
            ("[1, 1]", Arg::Ints(vec![1, 1])),
            ("[]", Arg::Ints(vec![])),
            ("\"none\"", Arg::Str("none".into())),
        ] {
            assert_eq!(default_value(text), value, "{text}");
        }
    }

    #[test]
    fn operators_that_are_only_converted_have_parameters_too() {
        assert_eq!(converted_only("_unsafe_view", ""), Some(vec![("self", None), ("size", None)]));
        let split = vec![("self", None), ("split_size", None), ("dim", Some("0"))];
        assert_eq!(converted_only("unsafe_split", "Tensor"), Some(split));
        assert_eq!((converted_only("unsafe_split", ""), converted_only("empty", "")), (None, None));
        for line in CONVERTED_ONLY.lines() {
            let (full, _) = line.split_once('(').unwrap();
            let (operator, overload) = full.split_once('.').unwrap_or((full, ""));
            assert!(fallback::parameters(&format!("aten::{operator}"), overload).is_none(), "{line} is listed twice");
        }
    }
}
