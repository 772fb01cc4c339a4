//! Scans, matmuls and pools.
mod attentions;
mod rows_in_tiles;

use crate::common::{check, check_on, checked_text, checked_text_by, compare_kernel, in_parallel, kernel};
use kiln_graph::Tensor;
use kiln_machine::Arch;
use kiln_plan::{
    KernelKind::{self, *},
    Precision,
};

const GPU: Arch = Arch::Sm90a;

fn body(kind: KernelKind, lines: &str) {
    check(kind, &format!("graph k{lines}"));
}
fn host(kind: KernelKind, lines: &str) {
    check_on(kind, &format!("graph k{lines}"), Arch::Cpu);
}

#[test]
fn scans() {
    for shape in ["[1,1]", "[3,7]", "[40,33]", "[2,20000]", "[300,3]"] {
        for axis in [0, 1] {
            body(Scan, &format!("(%x: f32{shape}) {{ %y = scan.sum %x axis={axis}\n return %y }}"));
            body(Scan, &format!("(%x: i64{shape}) {{ %y = scan.sum %x axis={axis}\n %z = add %y, %x\n return %z }}"));
        }
    }
    // Split rows on a GPU.
    for (shape, axis) in [("[2,40001]", 1), ("[40001,3]", 0), ("[1,33000]", 1), ("[2,9000,5]", 1)] {
        body(Scan, &format!("(%x: f32{shape}) {{ %y = scan.sum %x axis={axis}\n return %y }}"));
        body(Scan, &format!("(%x: i64{shape}) {{ %y = scan.sum %x axis={axis}\n return %y }}"));
        body(
            Scan,
            &format!(
                "(%x: bf16{shape}) {{ %c = cast %x to=f32\n %m = mul %c, 1e-3\n %a = add %m, 1\n \
                 %p = scan.prod %a axis={axis}\n %s = scan.sum %m axis={axis}\n %y = sub %s, %p\n return %y, %s }}"
            ),
        );
    }
    body(Scan, "(%x: f32[2,40001]) { %f = flip %x axes=[1]\n %y = scan.sum %f axis=1\n return %y }");
    body(Scan, "(%x: f32[2,40001]) { %p = softmax %x axis=1\n %y = scan.sum %p axis=1\n return %y }");
    body(Scan, "(%x: f64[3,40]) { %y = scan.prod %x axis=1\n return %y }");
    body(Scan, "(%x: bf16[3,4,40]) { %e = exp %x\n %y = scan.sum %e axis=1\n %z = neg %y\n return %z }");
    body(
        Scan,
        "(%x: f32[3,40]) { %f = flip %x axes=[1]\n %y = scan.sum %f axis=1\n %z = flip %y axes=[1]\n return %z }",
    );
    body(Scan, "(%x: f32[3,40]) { %p = softmax %x axis=1\n %y = scan.sum %p axis=1\n return %y }");
    body(
        Scan,
        "(%x: f32[3,40]) { %p = scan.sum %x axis=1\n %y = scan.sum %p axis=1\n %z = permute %y perm=[1,0]\n \
         return %z }",
    );
}

#[test]
fn matmuls() {
    for d in ["f32", "f64", "f16", "bf16"] {
        for (m, n, k) in [(1, 1, 1), (1, 40, 33), (5, 7, 9), (64, 64, 64), (70, 130, 50), (33, 1, 20), (8, 8, 0)] {
            body(Gemm, &format!("(%a: {d}[{m},{k}], %b: {d}[{k},{n}]) {{ %c = dot %a, %b\n return %c }}"));
            body(
                Gemm,
                &format!(
                    "(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {d}[{n}]) {{ %c = linear %a, %b, %v\n %g = gelu_erf %c\n \
                     return %g }}"
                ),
            );
        }
    }
    body(Gemm, "(%a: f32[3,2,9,10], %b: f32[2,10,12]) { %c = dot %a, %b\n return %c }");
    body(
        Gemm,
        "(%a: f32[3,9,10], %b: f32[3,12,10]) { %t = permute %b perm=[0,2,1]\n %c = dot %a, %t\n %d = mul %c, 0.5\n \
         return %d }",
    );
    body(
        Gemm,
        "(%x: f32[2,9,16], %w: f32[48,16], %b: f32[48]) { %c = linear %x, %w, %b\n %r = reshape %c shape=[2,9,3,4,4]\n \
         %p = permute %r perm=[2,0,3,1,4]\n return %p }",
    );
    body(
        Gemm,
        "(%x: f32[2,9,16], %w: f32[48,16]) { %c = linear %x, %w\n %q = slice %c axis=2 start=0 len=16 step=1\n \
         %k = slice %c axis=2 start=16 len=16 step=1\n %v = slice %c axis=2 start=32 len=16 step=1\n \
         return %q, %k, %v }",
    );
    body(
        Gemm,
        "(%x: f32[2,4,9,16], %w: f32[24,64], %r: f32[2,9,24]) { %p = permute %x perm=[0,2,1,3]\n \
         %y = reshape %p shape=[2,9,64]\n %c = linear %y, %w\n %s = add %c, %r\n return %s }",
    );
    body(Gemm, "(%x: f32[6,16], %w: f32[16,16]) { %e = silu %x\n %c = dot %e, %w\n return %c }");
    body(Gemm, "(%x: f32[6,16], %w: f32[16,16]) { %c = dot %x, %w\n %s = softmax %c axis=1\n return %s }");
    body(
        Gemm,
        "(%x: f32[20,16], %w: f32[32,16]) { %c = linear %x, %w\n %a = slice %c axis=1 start=0 len=16 step=1\n \
         %b = slice %c axis=1 start=16 len=16 step=1\n %s = silu %a\n %y = mul %s, %b\n return %y }",
    );
    body(Gemm, "(%a: i64[5,7], %b: i64[7,9]) { %c = dot %a, %b\n return %c }");
    body(
        Gemm,
        "(%x: f32[70,16], %w: f32[16,80]) { %c = dot %x, %w\n %t = permute %c perm=[1,0]\n %y = relu %t\n \
         return %y, %c }",
    );
    body(Gemm, "(%x: f32[600,16], %w: f32[16,200]) { %c = dot %x, %w\n return %c }");
}

#[test]
fn pools() {
    for attrs in [
        "window=[2,2] stride=[2,2] padding=[0,0] dilation=[1,1] ceil=false",
        "window=[3,3] stride=[2,2] padding=[1,1] dilation=[1,1] ceil=false",
        "window=[3,2] stride=[2,2] padding=[1,0] dilation=[1,1] ceil=true",
        "window=[9,9] stride=[1,2] padding=[4,4] dilation=[1,1] ceil=false",
    ] {
        body(Pool, &format!("(%x: f32[2,3,11,12]) {{ %y = pool.max %x {attrs}\n return %y }}"));
        body(Pool, &format!("(%x: f32[2,3,11,12]) {{ %y = pool.avg %x {attrs} count_pad=true\n return %y }}"));
        body(Pool, &format!("(%x: bf16[2,3,11,12]) {{ %y = pool.avg %x {attrs} count_pad=false\n return %y }}"));
    }
    body(
        Pool,
        "(%x: f32[2,3,11,12]) { %y = pool.max %x window=[3,3] stride=[1,1] padding=[0,0] dilation=[2,1] ceil=false\n \
         return %y }",
    );
}

/// Matmuls whose rows are multiples of 16 bytes take warpgroups on GPUs: every operand layout, ragged edges, batches,
/// results that are stored in rows, in columns and twice.
#[test]
fn matmuls_by_warpgroups() {
    let gpu = |lines: &str| check_on(Gemm, &format!("graph k{lines}"), Arch::Sm90a);
    for (d, m, n, k) in [("bf16", 64, 64, 64), ("f16", 65, 40, 72), ("bf16", 130, 264, 136), ("f16", 17, 32, 8)] {
        gpu(&format!("(%a: {d}[{m},{k}], %b: {d}[{k},{n}]) {{ %c = dot %a, %b\n return %c }}"));
        gpu(&format!(
            "(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {d}[{n}], %r: {d}[{m},{n}]) {{ %c = linear %a, %b, %v\n \
             %s = silu %c\n %y = add %s, %r\n return %y }}"
        ));
        gpu(&format!(
            "(%a: {d}[{k},{m}], %b: {d}[{n},{k}]) {{ %t = permute %a perm=[1,0]\n %c = linear %t, %b\n \
             %w = cast %c to=f32\n return %c, %w }}"
        ));
    }
    gpu("(%a: bf16[3,40,24], %b: bf16[3,24,72]) { %c = dot %a, %b\n return %c }");
    gpu("(%a: bf16[2,1,40,24], %b: bf16[3,24,72]) { %c = dot %a, %b\n return %c }");
    gpu("(%a: f16[40,24], %b: f16[72,24]) { %c = linear %a, %b\n %t = permute %c perm=[1,0]\n return %t }");
    gpu("(%a: f16[40,24], %b: f16[72,24]) { %c = linear %a, %b\n %s = softmax %c axis=1\n return %s }");
    // Enough tiles for clusters.
    gpu("(%a: bf16[1536,8], %b: bf16[8,2816]) { %c = dot %a, %b\n return %c }");
}

/// Exact f32 matmuls by FMAs from tiles in shared memory: every operand layout, ragged edges, batches, epilogues, every
/// available tile.
#[test]
fn matmuls_by_fmas() {
    let gpu = |lines: &str| check_on(Gemm, &format!("graph k{lines}"), Arch::Sm90a);
    for (m, n, k) in [(64, 64, 32), (65, 68, 36), (132, 264, 68), (17, 32, 4), (5, 1000, 64)] {
        gpu(&format!("(%a: f32[{m},{k}], %b: f32[{k},{n}]) {{ %c = dot %a, %b\n return %c }}"));
        gpu(&format!(
            "(%a: f32[{m},{k}], %b: f32[{n},{k}], %v: f32[{n}], %r: f32[{m},{n}]) {{ %c = linear %a, %b, %v\n \
             %s = silu %c\n %y = add %s, %r\n return %y }}"
        ));
    }
    for (m, n, k) in [(64, 64, 32), (132, 68, 36)] {
        gpu(&format!(
            "(%a: f32[{k},{m}], %b: f32[{n},{k}]) {{ %t = permute %a perm=[1,0]\n %c = linear %t, %b\n return %c }}"
        ));
        gpu(&format!(
            "(%a: f32[{k},{m}], %b: f32[{k},{n}]) {{ %t = permute %a perm=[1,0]\n %c = dot %t, %b\n \
             %y = permute %c perm=[1,0]\n return %y }}"
        ));
    }
    gpu("(%a: f32[3,40,24], %b: f32[3,24,72]) { %c = dot %a, %b\n return %c }");
    gpu("(%a: f32[40,24], %b: f32[72,24]) { %c = linear %a, %b\n %s = softmax %c axis=1\n return %s }");
}

/// Long K and few tiles: split-K, summed in a second step. Operands whose rows are no multiple of 16 bytes are copied
/// first.
#[test]
fn split_k_and_copied_operands() {
    let gpu = |lines: &str| check_on(Gemm, &format!("graph k{lines}"), Arch::Sm90a);
    gpu("(%a: bf16[16,4096], %b: bf16[72,4096], %v: bf16[72]) { %c = linear %a, %b, %v\n %s = silu %c\n return %s }");
    gpu("(%a: f32[40,4096], %b: f32[4096,72]) { %c = dot %a, %b\n %t = permute %c perm=[1,0]\n return %t }");
    gpu("(%a: f32[2,40,4096], %b: f32[2,4096,72]) { %c = dot %a, %b\n return %c, %c }");
    gpu("(%a: bf16[257,511], %b: bf16[511,255]) { %c = dot %a, %b\n return %c }");
    gpu("(%a: f32[257,511], %b: f32[255,511]) { %c = linear %a, %b\n return %c }");
    gpu("(%a: f32[1,3,129,129], %b: f32[2,1,129,1001]) { %c = dot %a, %b\n return %c }");
    gpu("(%a: f16[2,129,129], %b: f16[129,1001]) { %t = permute %a perm=[0,2,1]\n %c = dot %t, %b\n return %c }");
}

/// Dual GEMMs, of two matmuls or of the halves of one: every operand layout, ragged edges, biases, views of the result,
/// long K with few tiles, epilogues that are not elementwise, and few rows.
#[test]
fn dual_gemms() {
    let gpu = |lines: &str| {
        for arch in [Arch::Sm90a, Arch::Sm89, Arch::Sm80] {
            check_on(Gemm, &format!("graph k{lines}"), arch);
        }
    };
    for (d, m, n, k) in [("bf16", 64, 64, 64), ("f16", 65, 40, 72), ("bf16", 130, 136, 200), ("f16", 17, 7, 9)] {
        gpu(&format!(
            "(%x: {d}[{m},{k}], %g: {d}[{n},{k}], %u: {d}[{n},{k}]) {{ %a = linear %x, %g\n %b = linear %x, %u\n \
             %s = silu %a\n %y = mul %s, %b\n return %y }}"
        ));
        gpu(&format!(
            "(%x: {d}[{m},{k}], %g: {d}[{k},{n}], %u: {d}[{n},{k}], %r: {d}[{m},{n}]) {{ %t = permute %u perm=[1,0]\n \
             %a = dot %x, %g\n %b = dot %x, %t\n %s = gelu_tanh %b\n %y = mul %s, %a\n %z = add %y, %r\n return %z }}"
        ));
        gpu(&format!(
            "(%x: {d}[{k},{m}], %g: {d}[{k},{n}], %u: {d}[{k},{n}]) {{ %t = permute %x perm=[1,0]\n %a = dot %t, %g\n \
             %b = dot %t, %u\n %s = sigmoid %a\n %y = mul %s, %b\n %z = permute %y perm=[1,0]\n return %z }}"
        ));
        let half = format!("%a = slice %h axis=1 start=0 len={n}\n %b = slice %h axis=1 start={n} len={n}");
        let both = 2 * n;
        gpu(&format!(
            "(%x: {d}[{m},{k}], %w: {d}[{both},{k}], %v: {d}[{both}]) {{ %h = linear %x, %w, %v\n {half}\n \
             %s = sigmoid %b\n %y = mul %a, %s\n return %y }}"
        ));
        gpu(&format!(
            "(%x: {d}[{m},{k}], %w: {d}[{k},{both}]) {{ %h = dot %x, %w\n {half}\n %s = gelu_erf %b\n \
             %y = mul %a, %s\n return %y }}"
        ));
    }
    gpu("(%x: bf16[2,9,16], %g: bf16[24,16], %u: bf16[24,16], %c: bf16[24], %d: bf16[24]) { %a = linear %x, %g, %c\n \
         %b = linear %x, %u, %d\n %s = silu %a\n %y = mul %s, %b\n %r = reshape %y shape=[2,9,3,8]\n \
         %p = permute %r perm=[0,2,1,3]\n return %p }");
    gpu("(%x: bf16[3,40,24], %g: bf16[3,24,72], %u: bf16[3,24,72]) { %a = dot %x, %g\n %b = dot %x, %u\n \
         %s = silu %a\n %y = mul %s, %b\n return %y }");
    gpu("(%x: bf16[16,4096], %g: bf16[72,4096], %u: bf16[72,4096]) { %a = linear %x, %g\n %b = linear %x, %u\n \
         %s = silu %a\n %y = mul %s, %b\n return %y }");
    gpu("(%x: f16[16,4096], %w: f16[144,4096], %v: f16[144]) { %h = linear %x, %w, %v\n \
         %a = slice %h axis=1 start=0 len=72\n %b = slice %h axis=1 start=72 len=72\n %s = silu %b\n %y = mul %s, %a\n \
         return %y }");
    gpu("(%x: f16[33,64], %g: f16[40,64], %u: f16[40,64]) { %a = linear %x, %g\n %b = linear %x, %u\n \
         %s = softmax %a axis=1\n %y = mul %s, %b\n return %y }");
    gpu(
        "(%x: f16[1,512], %g: f16[40,512], %u: f16[40,512]) { %a = linear %x, %g\n %b = linear %x, %u\n %s = silu %a\n \
         %y = mul %s, %b\n return %y }",
    );
    gpu("(%x: f32[65,64], %g: f32[40,64], %u: f32[40,64]) { %a = linear %x, %g\n %b = linear %x, %u\n %s = silu %a\n \
         %y = mul %s, %b\n return %y }");
}

/// f32 matmuls in tf32: by warpgroups where operands are K-major, in place or transposed by a copy; without warpgroups
/// and on `sm_80` by tensor cores as well. The interpreter computes all of them in full precision.
#[test]
fn matmuls_in_tf32() {
    let precisions = |lines: &str, arch: Arch| checked_text(lines, Precision::Tf32, arch);
    let by_warpgroups = |lines: &str| {
        let text = checked_text_by(lines, Precision::Tf32, Arch::Sm90a, Some("tensor-core wgmma"));
        assert!(text.contains("wgmma"), "{lines}");
    };
    for (m, n, k) in [(64, 64, 32), (65, 68, 36), (132, 264, 68), (16, 72, 2048)] {
        by_warpgroups(&format!(
            "(%a: f32[{m},{k}], %b: f32[{n},{k}], %v: f32[{n}], %r: f32[{m},{n}]) {{ %c = linear %a, %b, %v\n \
             %s = silu %c\n %y = add %s, %r\n return %y }}"
        ));
    }
    by_warpgroups("(%a: f32[257,511], %b: f32[511,255]) { %c = dot %a, %b\n return %c }");
    by_warpgroups("(%a: f32[260,256], %b: f32[260,258]) { %t = permute %a perm=[1,0]\n %c = dot %t, %b\n return %c }");
    by_warpgroups("(%a: f32[3,140,136], %b: f32[3,136,300]) { %c = dot %a, %b\n return %c }");
    by_warpgroups(
        "(%x: f32[1,32,40,40], %w: f32[64,32,3,3]) { %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] \
         groups=1\n return %y }",
    );
    let small = "(%a: f32[65,33], %b: f32[33,70]) { %c = dot %a, %b\n return %c }";
    assert!(precisions(small, Arch::Sm90a).contains("dot tf32") && precisions(small, Arch::Sm80).contains("dot tf32"));
    precisions(
        "(%x: f32[2,4,9,8], %w: f32[6,4,3,2]) { %y = conv %x, %w stride=[2,1] padding=[1,2] dilation=[1,2] groups=1\n \
         return %y }",
        Arch::Sm90a,
    );
}

/// 3xTF32, of operands that a copy splits in two: for large enough f32 matmuls.
#[test]
fn matmuls_as_3xtf32() {
    let text = |lines: &str| checked_text(lines, Precision::Tf32x3, Arch::Sm90a);
    for lines in [
        "(%a: f32[524,516], %b: f32[580,516], %v: f32[580], %r: f32[524,580]) { %c = linear %a, %b, %v\n \
         %s = silu %c\n %y = add %s, %r\n return %y }",
        "(%a: f32[3,511,257], %b: f32[3,511,401]) { %t = permute %a perm=[0,2,1]\n %c = dot %t, %b\n return %c }",
    ] {
        let text = text(lines);
        assert!(text.contains("wgmma") && text.contains("a_low"), "{lines}\n{text}");
    }
    let small = text("(%a: f32[65,33], %b: f32[33,70]) { %c = dot %a, %b\n return %c }");
    assert!(!small.contains("tf32"), "{small}");
}

/// f8: by warpgroups where operands are K-major, in place or transposed by a copy; others by tensor cores in f16, few
/// rows by row reductions.
#[test]
fn matmuls_of_f8() {
    matmuls_of("f8e4m3");
    matmuls_of("f8e5m2");
}
fn matmuls_of(d: &str) {
    let text = |lines: &str, arch: Arch| checked_text(&lines.replace("f8", d), Precision::Exact, arch);
    let scaled =
        "%s = mul %c, %u\n %t = mul %s, %v\n %w = cast %z to=f32\n %p = add %t, %w\n %y = cast %p to=bf16\n return %y";
    for (m, n, k) in [(64, 64, 128), (65, 68, 144), (132, 264, 272), (16, 72, 4096)] {
        let lines = format!(
            "(%a: f8[{m},{k}], %b: f8[{n},{k}], %u: f32[{m},1], %v: f32[1,{n}], %z: bf16[{n}]) {{ %c = linear %a, %b\n \
             {scaled} }}"
        );
        let text = checked_text_by(&lines.replace("f8", d), Precision::Exact, Arch::Sm90a, Some("tensor-core wgmma"));
        assert!(text.contains("wgmma") && text.contains(d), "{text}");
    }
    for lines in [
        "(%a: f8[257,511], %b: f8[511,255]) { %c = dot %a, %b\n return %c }",
        "(%a: f8[2,140,144], %b: f8[2,300,144]) { %t = permute %b perm=[0,2,1]\n %c = dot %a, %t\n return %c }",
        "(%x: f32[272,272], %b: f8[288,272]) { %a = cast %x to=f8\n %c = linear %a, %b\n %y = cast %c to=f8\n \
         return %y }",
    ] {
        assert!(text(lines, Arch::Sm90a).contains("wgmma"), "{lines}");
    }
    let small = "(%a: f8[65,33], %b: f8[33,70]) { %c = dot %a, %b\n return %c }";
    let few = "(%a: f8[2,64], %b: f8[40,64]) { %c = linear %a, %b\n %y = cast %c to=f8\n return %y }";
    for lines in [small, few] {
        text(lines, Arch::Sm90a);
        text(lines, Arch::Sm80);
        host(Gemm, &lines.replace("f8", d));
    }
}

/// Skinny GEMMs, few rows by many columns: operands swapped, narrow tiles.
#[test]
fn matmuls_of_few_rows() {
    let gpu = |lines: &str| check_on(Gemm, &format!("graph k{lines}"), Arch::Sm90a);
    for (d, m, n, k) in [("bf16", 5, 64, 64), ("f16", 16, 200, 72), ("bf16", 17, 136, 200), ("f16", 32, 72, 2048)] {
        gpu(&format!(
            "(%a: {d}[{m},{k}], %b: {d}[{n},{k}], %v: {d}[{n}], %r: {d}[{m},{n}]) {{ %c = linear %a, %b, %v\n \
             %s = silu %c\n %y = add %s, %r\n return %y }}"
        ));
        gpu(&format!("(%a: {d}[{m},{k}], %b: {d}[{k},{n}]) {{ %c = dot %a, %b\n return %c }}"));
        gpu(&format!(
            "(%a: {d}[{m},{k}], %b: {d}[{n},{k}]) {{ %c = linear %a, %b\n %w = cast %c to=f32\n return %c, %w }}"
        ));
        gpu(&format!(
            "(%a: {d}[{m},{k}], %b: {d}[{n},{k}]) {{ %c = linear %a, %b\n %s = softmax %c axis=1\n return %s }}"
        ));
    }
    gpu("(%a: bf16[3,7,24], %b: bf16[3,24,72]) { %c = dot %a, %b\n %t = permute %c perm=[0,2,1]\n return %t }");
    gpu("(%a: f16[2,4,24], %b: f16[72,24]) { %c = linear %a, %b\n %r = reshape %c shape=[2,4,6,12]\n return %r }");
    gpu("(%a: bf16[8,16], %b: bf16[16,3000]) { %c = dot %a, %b\n return %c }");
}

/// Sums along rows compute their operands where they read them.
#[test]
fn arithmetic_of_operands_in_rows() {
    for d in ["f32", "bf16"] {
        for (operands, call) in [
            ("%x: T[1,64], %z: T[1,64], %w: T[96,64]", "%g = silu %x\n %m = mul %g, %z\n %y = linear %m, %w"),
            ("%x: T[1,64], %q: i8[96,64], %s: T[96,1]", "%c = cast %q to=T\n %w = mul %c, %s\n %y = linear %x, %w"),
            ("%x: T[2,3,40], %w: T[2,40,24], %c: T[24]", "%e = exp %x\n %d = dot %e, %w\n %y = add %d, %c"),
            ("%x: T[3,72], %w: f8e4m3[40,72]", "%c = cast %x to=f8e4m3\n %y = linear %c, %w"),
        ] {
            let text = format!("graph k({operands}) {{\n {call}\n return %y\n}}").replace("T[", &format!("{d}["));
            check_on(Gemm, &text.replace("to=T", &format!("to={d}")), GPU);
        }
    }
}
