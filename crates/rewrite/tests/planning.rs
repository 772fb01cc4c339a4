//! Plans of small graphs: the number and kinds of kernels, and that every plan verifies.
use crate::common::{fused, kinds, planned, unfused};
use kiln_plan::KernelKind::*;

#[test]
fn a_chain_of_pointwise_ops_is_one_kernel_and_a_framework_runs_one_each() {
    let g = "graph g(%x: f32[64,96], %y: f32[96]) {
        %a = add %x, %y
        %b = tanh %a
        %c = mul %b, %x
        return %c
    }";
    assert_eq!(kinds(&fused(g)), [Pointwise]);
    assert_eq!(kinds(&unfused(g)), [Pointwise; 3]);
}

#[test]
fn views_cost_nothing_where_they_are_read_through() {
    let g = "graph g(%x: f32[2,8,4,16]) {
        %p = permute %x perm=[0,2,1,3]
        %r = reshape %p shape=[2,4,128]
        %y = exp %r
        return %y
    }";
    assert_eq!(kinds(&unfused(g)), [Pointwise]);
}

#[test]
fn a_slice_of_one_element_may_have_any_step() {
    let g = "graph g(%x: f32[8]) {
        %y = exp %x
        %a = slice %y axis=0 start=3 len=1 step=4611686018427387904
        %b = slice %a axis=0 start=0 len=1 step=9223372036854775807
        %z = tanh %b
        return %z
    }";
    planned(g);
}

#[test]
fn a_result_may_be_an_input_a_parameter_a_constant_or_repeated() {
    let g = "graph g(%x: f32[4], %dead: f32[3]) {
        @w: f32[4] = fill(2.0)
        %c = const 1.5 : f32[]
        %t = permute @w perm=[0]
        %r = reshape %x shape=[2,2]
        return %x, @w, %c, %t, %r, %x, %r
    }";
    let p = fused(g);
    assert_eq!(p.outputs[0], p.outputs[5]);
    assert_eq!(p.outputs[4], p.outputs[6]);
    unfused(g);
}

#[test]
fn nothing_panics_on_empty_tensors_and_scalars() {
    planned(
        "graph g(%x: f32[0,4], %s: f32[]) {
        %a = reduce.sum %x axes=[0]
        %b = reshape %x shape=[4,0]
        %c = exp %b
        %d = mul %s, %s
        %e = add %a, %d
        %f = softmax %x axis=1
        return %c, %e, %f
    }",
    );
    planned("graph g() {\n return\n}");
}

#[test]
fn what_comes_from_parameters_only_is_computed_at_load_time() {
    let g = "graph g(%x: f32[4,8]) {
        @w: f32[8,8] = random(seed=1, scale=1.0)
        %e = exp @w
        %y = dot %x, %e
        return %y
    }";
    let p = fused(g);
    let stages: Vec<&str> = p.kernels.iter().map(|k| k.stage.name()).collect();
    assert_eq!(stages, ["load", "run"]);
}

#[test]
fn rows_columns_and_what_lies_between() {
    let one = |body: &str| {
        kinds(&fused(&format!("graph g(%x: f32[64,96], %m: f32[64,1]) {{\n{body}\n return %out\n}}"))).len()
    };
    assert_eq!(one("%a = reduce.mean %x axes=[1]\n %out = sub %x, %a"), 1, "a row mean and its rows");
    assert_eq!(one("%a = sub %x, %m\n %out = reduce.max %a axes=[0]"), 1, "a column maximum");
    assert_eq!(
        one("%a = reduce.mean %x axes=[1]\n %b = sub %x, %a\n %out = reduce.max %b axes=[0]"),
        2,
        "but not both"
    );
    assert_eq!(one("%a = softmax %x axis=1\n %out = permute %a perm=[1,0]"), 2, "rows are stored in their order");
}

#[test]
fn a_matmul_takes_views_before_and_arithmetic_after() {
    let g = "graph g(%x: f32[2,32,64], %r: f32[64,2,32]) {
        @w: f32[64,64] = random(seed=1, scale=1.0)
        @b: f32[64] = random(seed=2, scale=1.0)
        %y = linear %x, @w, @b
        %g = gelu_tanh %y
        %p = permute %g perm=[2,0,1]
        %s = add %p, %r
        return %s
    }";
    assert_eq!(kinds(&fused(g)), [Gemm]);
    let g = "graph g(%x: f32[ROWS,64]) {
        @w: f32[64,64] = random(seed=1, scale=1.0)
        %t = tanh %x
        %y = linear %t, @w
        %n = softmax %y axis=1
        return %n
    }";
    // Of few rows a form computes its operands; whether that is cheaper, its price would say.
    let by_form = "no gain: no schedule of a form that fuses them has a price";
    for (rows, why, needs) in [("32", "arithmetic before a matmul", &[][..]), ("8", by_form, &["left-operand"])] {
        let p = fused(&g.replace("ROWS", rows));
        assert_eq!(kinds(&p), [Pointwise, Gemm, Reduction]);
        let stops = &p.kernels[1].reason.stops;
        let whys: Vec<&str> = stops.iter().map(|s| s.why.as_str()).collect();
        assert_eq!(whys, [why, "row reduction after a matmul"]);
        assert_eq!(stops[0].needs.names(), needs);
    }
}

#[test]
fn a_residual_and_its_norm_are_one_kernel_with_two_results() {
    let p = fused(
        "graph g(%x: f32[128,96], %y: f32[128,96]) {
        @g: f32[96] = fill(1.0)
        @b: f32[96] = fill(0.0)
        %r = add %x, %y
        %n = layer_norm %r, @g, @b axes=1 affine=true eps=1e-5
        return %r, %n
    }",
    );
    assert_eq!(kinds(&p), [Reduction]);
    assert_eq!(p.kernels[0].outputs.len(), 2);
}

/// Pairs that are separated by a view and stacked again: all of them are read, once.
#[test]
fn both_of_pairs_are_priced() {
    let g = "graph g(%x: f32[4,16,64], %s: f32[16,32]) {
        %v = reshape %x shape=[4,16,32,2]
        %i = slice %v axis=3 start=0 len=1
        %j = slice %v axis=3 start=1 len=1
        %a = reshape %i shape=[4,16,32]
        %b = reshape %j shape=[4,16,32]
        %c = mul %a, %s
        %d = sub %b, %a
        %p = reshape %c shape=[4,16,32,1]
        %q = reshape %d shape=[4,16,32,1]
        %t = concat %p, %q axis=3
        %y = reshape %t shape=[4,16,64]
        return %y
    }";
    let p = fused(g);
    assert_eq!(kinds(&p), [Pointwise]);
    assert_eq!(p.kernels[0].cost.bytes_read, 4 * (4 * 16 * 64 + 16 * 32));
}
