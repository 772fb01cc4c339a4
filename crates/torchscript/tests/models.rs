//! Imported graphs compute the same as libtorch from the same archive, on the example inputs and on different data.
use crate::common::*;

/// Imports, compares, and checks which operators fall back.
fn check(name: &str, expected_fallbacks: &[&str]) -> Result<(), String> {
    let (path, example) = (archive(name), inputs(name));
    let model = kiln_torchscript::import(&path, &example).map_err(|e| format!("{name}: import: {e}"))?;
    for (what, data) in [("example", example.clone()), ("fresh data", fresh(&example))] {
        if let Some(d) = difference(&evaluate(&model, &data), &reference(&path, &data)) {
            return Err(format!("{name} on {what}: {d}\n{}", summary(&model.graph)));
        }
    }
    let found = fallbacks(&model.graph);
    let names: Vec<&str> = found.iter().filter_map(|f| f.split_once(": ")).map(|f| f.0).collect();
    if names != expected_fallbacks {
        return Err(format!("{name}: fallbacks are {found:#?}, expected {expected_fallbacks:?}"));
    }
    Ok(())
}

/// Checks a group of models and reports all failures in one message.
fn check_all(cases: &[(&str, &[&str])]) {
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|(name, fallbacks)| {
            let run = std::panic::catch_unwind(|| check(name, fallbacks));
            run.unwrap_or_else(|_| Err(format!("{name}: panicked"))).err()
        })
        .collect();
    assert!(failures.is_empty(), "{} of {} failed:\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

#[test]
fn networks() {
    check_all(&[("mlp", &[]), ("loopif", &[]), ("llama", &[]), ("llama_eager", &[])]);
}

#[test]
fn kernels() {
    check_all(&[
        ("tiny_mlp", &[]),
        ("softmax_primitives", &[]),
        ("gelu_tanh_primitives", &[]),
        ("matmul_leaky_relu", &[]),
        ("glu_mlp", &[]),
        ("cdist", &[]),
        ("cdist_small", &[]),
        ("attention_primitives", &[]),
        ("attention_sdpa", &[]),
        ("attention_gqa_mask", &[]),
        ("encoder_layers", &[]),
        ("encoder_mask", &[]),
        ("encoder_float_mask", &[]),
        ("encoder_padding", &[]),
        ("encoder_both", &[]),
        ("encoder_blind", &[]),
        ("multi_head", &[]),
        ("multi_head_parts", &[]),
        ("gru_cell", &[]),
        ("lstm_cell", &[]),
        ("rms_norm_primitives", &[]),
        ("norms", &[]),
        ("convolutions", &[]),
        ("convolutions_script", &[]),
        ("pools", &[]),
    ]);
}

#[test]
fn inputs_and_outputs() {
    check_all(&[
        ("out_tuple", &[]),
        ("out_list", &[]),
        ("out_dict", &[]),
        ("out_nested", &[]),
        ("several_inputs", &[]),
        ("output_is_input", &[]),
        ("scalar_arguments", &[]),
        ("optional_argument", &[]),
    ]);
}

#[test]
fn element_types() {
    check_all(&[
        ("dtype_f64", &[]),
        ("dtype_f16", &[]),
        ("dtype_bf16", &[]),
        ("dtype_f8", &[]),
        ("dtype_f8e5m2", &[]),
        ("dtype_i64", &[]),
        ("dtype_i32", &[]),
        ("dtype_i16", &[]),
        ("dtype_i8", &[]),
        ("dtype_u8", &[]),
        ("dtype_narrow", &[]),
        ("quantised_linear", &[]),
        ("dtype_bool", &[]),
        ("dtype_mixed", &[]),
    ]);
}

#[test]
fn mutation() {
    check_all(&[
        ("mutates_view", &[]),
        ("mutates_view_trace", &[]),
        ("mutates_plain", &[]),
        ("mutates_pieces", &[]),
        ("mutates_other_views", &[]),
        ("mutates_many_views", &[]),
    ]);
}

#[test]
fn pointwise_operators() {
    check_all(&[
        ("op_arithmetic", &[]),
        ("op_complex_view", &[]),
        ("op_rounding", &[]),
        ("op_division", &[]),
        ("op_int_division", &[]),
        ("op_exponentials", &[]),
        ("op_trigonometry", &["aten::erfc"]),
        ("op_powers", &[]),
        ("op_int_powers", &[]),
        ("op_activations", &[]),
        ("op_prelu", &[]),
        ("op_clamp", &[]),
        ("op_compare", &[]),
        ("op_logic", &[]),
        ("op_where", &[]),
        ("op_lerp", &[]),
        ("op_nan_to_num", &[]),
        ("op_bitwise", &[]),
        ("op_glu", &[]),
        ("op_casts", &[]),
    ]);
}

#[test]
fn reductions() {
    check_all(&[
        ("op_reductions", &[]),
        ("op_moments", &[]),
        ("op_vector_norms", &[]),
        ("op_log_sums", &[]),
        ("op_scans", &[]),
        ("op_losses", &[]),
        ("op_similarity", &[]),
    ]);
}

#[test]
fn data_movement() {
    check_all(&[
        ("op_shapes", &[]),
        ("op_slices", &[]),
        ("op_joins", &[]),
        ("op_copies", &[]),
        ("op_pads", &[]),
        ("op_windows", &[]),
        ("op_triangles", &[]),
        ("op_creation", &[]),
        ("op_meshgrid", &[]),
        ("op_upsample", &[]),
        ("op_upsample_integers", &["aten::upsample_bilinear2d"]),
        ("op_as_strided", &[]),
        ("op_rank_0", &["aten::cosine_similarity"]),
        ("op_no_elements", &[]),
        ("strides_read", &[]),
        ("op_fixed_shapes", &["aten::index", "aten::repeat_interleave"]),
    ]);
}

#[test]
fn index_operators() {
    check_all(&[
        ("op_index_get", &[]),
        ("op_gather", &[]),
        ("op_scatter", &[]),
        ("op_scatter_reduce", &["aten::index_reduce", "aten::scatter_reduce"]),
        ("op_embedding", &[]),
        ("op_sort", &["aten::argsort", "aten::sort", "aten::topk"]),
    ]);
}

#[test]
fn matmuls() {
    check_all(&[
        ("op_matmul", &[]),
        ("op_addmm", &[]),
        ("op_einsum", &[]),
        ("op_linear", &[]),
        ("op_pool_uneven", &[]),
        ("op_pool3d", &[]),
    ]);
}

/// An index out of range for its own axis is an error even if the combined position is inside the table, as in
/// libtorch.
#[test]
fn indices_stay_in_their_own_axes() {
    let (path, example) = (archive("op_index_get"), inputs("op_index_get"));
    let model = kiln_torchscript::import(&path, &example).unwrap();
    let refusal = |input: usize, index: i64| {
        let mut data = example.clone();
        data[input].set_i64(0, index);
        kiln_interp::graph::run(&model.graph, &data, &model.params, &mut fallback).err().map(|e| e.to_string())
    };
    // `x[i, j]` and others use j on an axis of 4; j = 4 would address the next row.
    assert_eq!(refusal(2, 3), None);
    assert!(refusal(2, 4).is_some_and(|e| e.contains("take") && e.contains("is out of range")));
    // Negative indices count from the end, but `index_select` rejects them.
    assert_eq!(refusal(2, -1), None);
    assert!(refusal(1, -1).is_some_and(|e| e.contains("index -1 is out of range for an axis of 4")));
}
