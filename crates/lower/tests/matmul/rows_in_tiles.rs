//! Rows of a matmul that its epilogue reduces: all columns of a tile, or heads.
use super::*;

/// Rows that are reduced after the matmul: in its tile if that has all columns, with warpgroups or without them; in a
/// step of their own under split-K, in narrower tiles, or with FMAs.
#[test]
fn rows_in_a_tile() {
    let reduced = |lines: &str, arch: Arch| {
        let text = checked_text_by(lines, Precision::Tf32, arch, Some("tensor-core wgmma"));
        (text.matches("kernel @").count(), text.contains("wgmma"))
    };
    let softmax = "%y = softmax %c axis=1\n return %y";
    let norm = "%s = add %c, %r\n %y = layer_norm %s, %g, %v eps=1e-5\n return %y";
    for (d, m, n, k) in [("bf16", 64, 64, 64), ("f16", 65, 40, 72), ("f32", 130, 136, 72), ("bf16", 70, 256, 64)] {
        let head = format!("(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {d}[{n}], %g: {d}[{n}], %r: {d}[{m},{n}])");
        let turned = format!("%y = reduce.max %c axes=[1]\n %z = reshape %y shape=[1,{m}]\n return %z");
        for rest in [
            softmax,
            norm,
            "%y = rms_norm %c, %g eps=1e-6\n %z = add %y, %r\n return %z",
            "%p = mul %c, %r\n %y = reduce.sum %p axes=[1]\n return %y",
            &turned,
        ] {
            let lines = format!("{head} {{ %c = linear %a, %b, %v\n {rest} }}");
            assert_eq!(reduced(&lines, Arch::Sm90a), (1, true), "{lines}");
            assert_eq!(reduced(&lines, Arch::Sm80).0, 1, "{lines}");
        }
    }
    // Rows of any length without warpgroups; heads and images as batches.
    let whole = |lines: &str| {
        let text = checked_text(lines, Precision::Tf32, Arch::Sm90a);
        assert_eq!(text.matches("kernel @").count(), 1, "{lines}");
    };
    whole(&format!("(%a: bf16[33,17], %b: bf16[17,7]) {{ %c = dot %a, %b\n {softmax} }}"));
    whole(&format!("(%a: f16[9,33], %b: f16[33,200]) {{ %c = dot %a, %b\n {softmax} }}"));
    whole("(%a: bf16[3,40,64], %b: bf16[3,64,72]) { %c = dot %a, %b\n %y = log_softmax %c axis=2\n return %y }");
    whole(
        "(%a: bf16[2,36,64], %b: bf16[48,64]) { %c = linear %a, %b\n %y = softmax %c axis=2\n \
         %s = reshape %y shape=[72,48]\n return %s }",
    );
    let apart = |lines: &str| assert!(reduced(lines, Arch::Sm90a).0 > 1, "{lines}");
    apart("(%a: bf16[64,64], %b: bf16[64,64]) { %c = dot %a, %b\n %y = softmax %c axis=0\n return %y }");
    apart(&format!("(%a: bf16[64,64], %b: bf16[300,64]) {{ %c = linear %a, %b\n {softmax} }}"));
    let long = format!("(%a: bf16[40,4096], %b: bf16[72,4096]) {{ %c = linear %a, %b\n {softmax} }}");
    let split = checked_text_by(&long, Precision::Exact, Arch::Sm90a, Some("split-reduce k"));
    assert_eq!(split.matches("kernel @").count(), 2, "{split}");
    apart(
        "(%a: bf16[64,64], %b: bf16[64,64], %r: bf16[64,64]) { %c = linear %a, %b\n %p = softmax %r axis=1\n \
         %y = mul %c, %p\n return %y }",
    );
}

/// Rows that are heads: reduced in tiles as wide as a head where these are faster than a step for the rows, whatever is
/// around them.
#[test]
fn heads_in_a_tile() {
    let kernels =
        |lines: &str, precision: Precision| checked_text(lines, precision, Arch::Sm90a).matches("kernel @").count();
    let kinds = [("bf16", 513, 4, 64), ("f16", 600, 3, 72), ("f32", 520, 4, 136)];
    let cases: Vec<_> = kinds.into_iter().flat_map(|kind| [64, 128, 256].map(|head| (kind, head))).collect();
    in_parallel(&cases, |&((d, m, heads, k), head)| {
        let n = heads * head;
        let rank = |rest: &str| {
            format!(
                "(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {d}[{n}], %g: {d}[{head}], %w: {d}[{head}], %r: \
                 {d}[{m},{heads},{head}]) {{ %c = linear %a, %b, %v\n %h = reshape %c shape=[{m},{heads},{head}]\n \
                 {rest}\n return %y }}"
            )
        };
        for rest in [
            "%y = rms_norm %h, %g eps=1e-6",
            "%s = add %h, %r\n %y = layer_norm %s, %g, %w eps=1e-5",
            "%p = softmax %h axis=2\n %y = mul %p, %r",
        ] {
            let lines = rank(rest);
            let found = kernels(&lines, Precision::Tf32);
            assert!(found == 1 || head == 64 && found == 2, "{lines}: {found}");
        }
        // One value per head.
        for rest in [
            "%y = reduce.sum %h axes=[2]",
            "%o = reduce.max %h axes=[2]\n %s = sub %h, %o\n %e = exp %s\n %t = reduce.sum %e axes=[2]\n %l = log %t\n \
             %q = add %o, %l\n %y = reshape %q shape=[M,H]",
        ] {
            let lines = rank(&rest.replace('M', &m.to_string()).replace('H', &heads.to_string()));
            let found = kernels(&lines, Precision::Tf32);
            assert!(found == 1 || head == 64 && found == 2, "{lines}: {found}");
        }
    });
    let batched = "(%a: bf16[2,300,64], %b: bf16[256,64], %g: bf16[128]) { %c = linear %a, %b\n \
                   %h = reshape %c shape=[2,300,2,128]\n %y = rms_norm %h, %g eps=1e-6\n return %y }";
    assert_eq!(kernels(batched, Precision::Exact), 1);
    let apart = |lines: &str| assert!(kernels(lines, Precision::Exact) > 1, "{lines}");
    apart(
        "(%a: bf16[512,64], %b: bf16[512,64], %g: bf16[128]) { %c = linear %a, %b\n \
         %h = reshape %c shape=[512,128,4]\n %t = permute %h perm=[0,2,1]\n %y = rms_norm %t, %g eps=1e-6\n \
         return %y }",
    );
    apart(
        "(%a: f32[512,64], %b: f32[512,64], %g: f32[128]) { %c = linear %a, %b\n %h = reshape %c shape=[512,4,128]\n \
         %y = rms_norm %h, %g eps=1e-6\n return %y }",
    );
    apart(
        "(%a: bf16[512,64], %b: bf16[384,64], %g: bf16[96]) { %c = linear %a, %b\n %h = reshape %c shape=[512,4,96]\n \
         %y = rms_norm %h, %g eps=1e-6\n return %y }",
    );
}
