//! Templates that a constraint requests: each computes the same and shows in the steps, or is refused with the reason.
use crate::common::{self, difference, kernel, run_steps, text};
use kiln_graph::{Graph, random};
use kiln_interp::graph::{Precision, no_fallback, run_with};
use kiln_lower::{LowerError, lower, lower_at, template};
use kiln_machine::{Arch, Library, Machine};
use kiln_plan::{
    Family, KernelKind, Template,
    exec::{Slot, Work},
};

/// Lowers `graph` with the template `wanted`, checks the results, and returns the template that the steps show.
fn lowered(kind: KernelKind, graph: &str, wanted: &str, target: Arch) -> Result<Template, String> {
    let body: Graph = graph.parse().expect("a graph");
    let mut k = kernel(kind, body);
    k.reason.template = Some(wanted.parse().expect("a template"));
    let steps = lower(&k, target).map_err(LowerError::why)?;
    let inputs = random::inputs(&k.body, 7);
    let want = run_with(&k.body, &inputs, &[], Precision::F64, &mut no_fallback).expect("interprets");
    let got = run_steps(&k.body, &steps, &inputs).expect("runs");
    difference(&k.body, &want, &got).unwrap_or_else(|e| panic!("{wanted}: {e}\n{}", text(&steps)));
    Ok(template::of(kind, steps.steps.iter().map(template::Part::from)))
}
const GPU: Arch = Arch::Sm90a;

#[test]
fn matmuls_take_the_requested_template() {
    let matmul = |d: &str, m: usize| {
        format!(
            "graph k(%a: {d}[{m},72], %b: {d}[48,72], %c: {d}[48]) {{ %y = linear %a, %b, %c\n %z = tanh %y\n return %z }}"
        )
    };
    for (d, wanted, target) in [
        ("f32", "tile", GPU),
        ("f32", "tile 16x32", GPU),
        ("f32", "tile 128x16", GPU),
        ("f64", "rows", GPU),
        ("bf16", "tile 64x64", GPU),
        ("bf16", "warpgroup", GPU),
        ("bf16", "warpgroup 64x64", GPU),
        ("f32", "warpgroup", GPU),
        ("f32", "warpgroup 64x128", GPU),
        ("f32", "library", Arch::Cpu),
        ("f32", "library", GPU),
        ("bf16", "library", GPU),
        ("f64", "library", GPU),
        ("f32", "rows", Arch::Cpu),
    ] {
        for m in [3, 70] {
            let found = lowered(KernelKind::Gemm, &matmul(d, m), wanted, target);
            let wanted: Template = wanted.parse().expect("a template");
            assert!(found.clone().is_ok_and(|f| wanted.fits(f)), "{d} {m} {wanted}: {found:?}");
        }
    }
    for (d, wanted, target, why) in [
        ("f64", "warpgroup", GPU, "bf16, f16, f32 or f8"),
        ("bf16", "warpgroup 256x256", GPU, "one of the tiles"),
        ("bf16", "warpgroup", Arch::Sm80, "sm_90"),
        ("f32", "flash", GPU, "does not apply; only `warpgroup"),
        ("f32", "tile", Arch::Cpu, "does not apply; only `library`"),
    ] {
        let e = lowered(KernelKind::Gemm, &matmul(d, 70), wanted, target).expect_err(wanted);
        assert!(e.contains(why), "{wanted}: {e}");
    }
}

#[test]
fn attention_has_one_template_on_each_side() {
    let text = "graph k(%q: f32[2,9,16], %k: f32[2,11,16], %v: f32[2,11,16]) {
        %y = attention %q, %k, %v scale=0.25
        return %y }";
    assert_eq!(lowered(KernelKind::Attention, text, "flash", GPU).map(|t| t.to_string()).as_deref(), Ok("flash"));
    assert!(lowered(KernelKind::Attention, text, "library", Arch::Cpu).is_ok());
    let e = lowered(KernelKind::Attention, text, "tile", GPU).expect_err("flash alone");
    assert!(e.contains("does not apply; only `flash` does"), "{e}");
}

#[test]
fn pairwise_distances_take_matmul_tiles_where_profitable() {
    let squares = "%d = sub %x, %y\n %s = mul %d, %d\n %t = reduce.sum %s axes=[2]\n %r = sqrt %t\n return %r }";
    let apart = "%d = sub %y, %x\n %s = abs %d\n %r = reduce.sum %s axes=[0]\n return %r }";
    let batched =
        "%d = sub %x, %y\n %s = mul %d, %d\n %r = reduce.sum %s axes=[2]\n %z = mul %r, 0.5\n return %z, %r }";
    for (text, wanted) in [
        (format!("graph k(%x: f32[96,1,720], %y: f32[70,720]) {{ {squares}"), "warpgroup"),
        (format!("graph k(%x: f32[300,1,131], %y: f32[1,144,131]) {{ {squares}"), "tile"),
        (format!("graph k(%x: f32[520,1,131], %y: f32[1,301,131]) {{ {squares}"), "warpgroup"),
        (format!("graph k(%x: f32[700,80,1], %y: f32[700,1,96]) {{ {apart}"), "warpgroup"),
        (format!("graph k(%x: f32[3,36,1028,1], %y: f32[3,1,1028,52]) {{ {batched}"), "warpgroup"),
        (format!("graph k(%x: f32[65,1,1021], %y: f32[1,65,1021]) {{ {squares}"), "warpgroup"),
        (format!("graph k(%x: f32[20,1,720], %y: f32[400,720]) {{ {squares}"), "rows"),
        (format!("graph k(%x: f32[40,1,7], %y: f32[400,7]) {{ {squares}"), "rows"),
    ] {
        let body: Graph = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let k = kernel(KernelKind::Reduction, body);
        let steps = lower(&k, GPU).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let found = template::of(k.kind, steps.steps.iter().map(template::Part::from));
        assert_eq!(found.family.name(), wanted, "{text}");
        let inputs = random::inputs(&k.body, 7);
        let compared = common::compare_kernel(&k, &inputs, GPU).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert!(compared.is_ok(), "{text}");
    }
}

/// The library's epilogue of a matmul, in words; `None` where block programs compute the rest.
fn epilogue(text: &str) -> Option<String> {
    let found = lowered(KernelKind::Gemm, text, "library", GPU);
    assert_eq!(found.map(|t| t.family.name()), Ok("library"), "{text}");
    let mut k = kernel(KernelKind::Gemm, text.parse().expect("a graph"));
    k.reason.template = Some("library".parse().expect("a template"));
    let steps = lower(&k, GPU).expect("the library takes it").steps;
    match &steps[..] {
        [Work::Gemm(g)] => Some(g.epilogue.words().join(", ")),
        _ => None,
    }
}

#[test]
fn the_library_of_a_gpu_has_epilogues() {
    let graph = |d: &str, lead: &str, rest: &str| {
        format!(
            "graph k(%a: {d}[{lead}40], %b: {d}[72,40], %v: {d}[72], %r: {d}[{lead}72]) {{ %c = linear %a, %b\n {rest}\n return %y }}"
        )
    };
    let wholly: [(&str, &str); 12] = [
        ("%y = add %c, %v", "bias"),
        ("%y = add %v, %c", "bias"),
        ("%y = add %c, %r", "residual"),
        ("%y = relu %c", "relu"),
        ("%h = add %c, %v\n %y = relu %h", "bias, relu"),
        ("%h = add %c, %r\n %i = add %h, %v\n %y = relu %i", "residual, bias, relu"),
        ("%s = mul %c, 0.5\n %t = mul %r, 2.0\n %y = add %s, %t", "scaled, residual"),
        ("%s = mul %c, 0.5\n %h = add %s, %v\n %y = relu %h", "scaled, bias, relu"),
        ("%y = mul %c, -3.0", "scaled"),
        ("%h = add %c, %v\n %y = gelu_tanh %h", "bias, gelu by tanh"),
        ("%y = gelu_tanh %c", "gelu by tanh"),
        ("%h = add %c, %v\n %y = add %h, %r", "residual, bias"),
    ];
    for (d, lead) in [("bf16", "70,"), ("f16", "2,9,"), ("f32", "70,"), ("bf16", "1,")] {
        for (rest, words) in wholly {
            let text = graph(d, lead, rest);
            // The residual of a single row is a bias.
            let words = if lead == "1," && words == "residual" { "bias" } else { words };
            // In f32 the library's GELU is not accurate enough, and terms must not be added in another order.
            let takes = d != "f32" || !rest.contains("gelu") && words != "residual, bias";
            assert_eq!(epilogue(&text).as_deref(), takes.then_some(words), "{text}");
        }
    }
    for (rest, words) in [
        ("%h = gelu_erf %c\n %y = add %h, %v", None),
        ("%h = relu %c\n %y = add %h, %v", None),
        ("%y = mul %c, %v", None),
        ("%y = mul %c, 0.0", None),
        ("%y = add %c, %c", None),
        ("%y = cast %c to=f32", None),
        ("%y = permute %c perm=[1,0]", None),
        ("%y = slice %c axis=1 start=0 len=40", None),
        ("%h = mul %v, 2.0\n %y = add %c, %h", None),
        ("%y = reshape %c shape=[7,10,72]", Some("")),
        ("%h = reshape %c shape=[70,8,9]\n %y = relu %h", Some("relu")),
        ("%h = add %c, %v\n %i = add %h, %v\n %y = relu %i", None),
    ] {
        let text = graph("bf16", "70,", rest);
        assert_eq!(epilogue(&text).as_deref(), words, "{text}");
    }
    let batched = "graph k(%a: f16[3,17,40], %b: f16[3,40,72], %v: f16[72], %r: f16[17,72]) { %c = dot %a, %b\n %h = add %c, %v\n %i = add %r, %h\n %y = relu %i\n return %y }";
    assert_eq!(epilogue(batched).as_deref(), Some("residual, bias, relu"));
    let double =
        "graph k(%a: f64[17,40], %b: f64[40,72], %v: f64[72]) { %c = dot %a, %b\n %y = add %c, %v\n return %y }";
    assert_eq!(epilogue(double), None);
}

/// The library's matmuls with every operand layout and with epilogues, and the alternative steps without the library.
#[test]
fn the_library_of_a_gpu_takes_strided_matmuls() {
    for text in [
        "(%a: f32[70,33], %b: f32[33,50]) { %y = dot %a, %b\n return %y }",
        "(%a: bf16[33,70], %b: bf16[50,33]) { %t = permute %a perm=[1,0]\n %u = permute %b perm=[1,0]\n %y = dot %t, %u\n return %y }",
        "(%a: f16[3,17,40], %b: f16[3,40,9]) { %y = dot %a, %b\n %z = tanh %y\n return %z }",
        "(%a: f32[2,3,17,40], %b: f32[40,9]) { %y = dot %a, %b\n return %y }",
        "(%a: f32[1,40], %b: f32[90,40]) { %y = linear %a, %b\n return %y }",
        "(%a: f64[20,40], %b: f64[31,40], %c: f64[31]) { %y = linear %a, %b, %c\n %s = softmax %y axis=1\n return %s }",
        "(%a: f32[40,64], %b: f32[96,64]) { %y = linear %a, %b\n %l = slice %y axis=1 start=0 len=48\n %r = slice %y axis=1 start=48 len=48\n %z = mul %l, %r\n return %z }",
        "(%a: f32[40,64], %b: f32[64,96]) { %e = exp %a\n %y = dot %e, %b\n %t = permute %y perm=[1,0]\n return %t, %y }",
    ] {
        let found = lowered(KernelKind::Gemm, &format!("graph k{text}"), "library", GPU);
        assert_eq!(found.map(|t| t.family.name()), Ok("library"), "{text}");
        let mut k = kernel(KernelKind::Gemm, format!("graph k{text}").parse().expect("a graph"));
        let own = lower(&k, GPU).expect("a template of Kiln's own");
        k.reason.template = Some("library".parse().expect("a template"));
        let steps = lower(&k, GPU).expect("the library takes it");
        assert_eq!(steps.otherwise.as_deref(), Some(&own), "{text}");
        let call = steps.steps.iter().find_map(|w| if let Work::Gemm(g) = w { Some(g) } else { None });
        let call = call.expect("a matmul");
        assert!(call.strided().is_some(), "{call:?}");
        let space = call.workspace.expect("memory for intermediate results");
        assert_eq!(space, Slot::Scratch(steps.scratch.len() as u32 - 1), "{text}");
    }
    for (text, why) in [
        (
            "(%a: f32[2,20,64], %b: f32[64,9]) { %s = slice %a axis=2 start=0 len=32 step=2\n %w = slice %b axis=0 start=0 len=16\n %t = slice %s axis=2 start=0 len=16\n %y = dot %t, %w\n return %y }",
            "one pitch apart",
        ),
        (
            "(%a: f32[20,64], %b: f32[9,64], %c: f32[9,64]) { %y = linear %a, %b\n %z = linear %a, %c\n %m = mul %y, %z\n return %m }",
            "one matmul",
        ),
    ] {
        let e = lowered(KernelKind::Gemm, &format!("graph k{text}"), "library", GPU).expect_err(text);
        assert!(e.contains(why), "{e}");
    }
}

#[test]
fn the_library_is_the_default_where_it_was_measured_to_be_faster() {
    let linear = |d: &str, m: usize, n: usize, k: usize| {
        format!("graph k(%a: {d}[{m},{k}], %b: {d}[{n},{k}]) {{ %y = linear %a, %b\n return %y }}")
    };
    let dot = |n: usize| format!("graph k(%a: f32[{n},{n}], %b: f32[{n},{n}]) {{ %y = dot %a, %b\n return %y }}");
    for (text, tf32, arch, wanted) in [
        (linear("bf16", 4096, 4096, 65536), false, Arch::Sm90a, "library"),
        (linear("f16", 4096, 4096, 65536), false, Arch::Sm90a, "library"),
        (linear("bf16", 4096, 4096, 65536), false, Arch::Sm80, "tile"),
        (linear("bf16", 4096, 4096, 32768), false, Arch::Sm90a, "warpgroup"),
        (linear("bf16", 8192, 28672, 8192), false, Arch::Sm90a, "warpgroup"),
        (linear("f32", 4096, 4096, 4096), true, Arch::Sm90a, "warpgroup"),
        (dot(4096), true, Arch::Sm90a, "library"),
        (dot(4096), false, Arch::Sm90a, "warpgroup"),
        (dot(1024), true, Arch::Sm90a, "warpgroup"),
    ] {
        let mut k = kernel(KernelKind::Gemm, text.parse().expect("a graph"));
        k.precision = if tf32 { kiln_plan::Precision::Tf32 } else { kiln_plan::Precision::Exact };
        let steps = lower(&k, arch).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let found = template::of(k.kind, steps.steps.iter().map(template::Part::from));
        assert_eq!(found.family.name(), wanted, "{text}");
        assert_eq!(steps.otherwise.is_some(), wanted == "library", "{text}");
        let all = kiln_lower::candidates(&k, arch.machine());
        assert_eq!(all[0].template.family.name(), wanted, "{text}");
        assert!(all.iter().any(|c| c.template.family.name() == "library"), "{text}");
    }
}

/// A machine's description says how fast its library is.
#[test]
fn the_library_is_taken_at_its_price() {
    let text = "graph k(%a: bf16[512,512], %b: bf16[512,512]) { %y = linear %a, %b\n return %y }";
    let k = kernel(KernelKind::Gemm, text.parse().expect("a graph"));
    let family = |share: f64| {
        let h200 = GPU.machine().clone();
        let machine = Machine { library: Library { share, ..h200.library }, ..h200 };
        let steps = lower_at(&k, &machine).expect("lowers");
        template::of(KernelKind::Gemm, steps.steps.iter().map(template::Part::from)).family
    };
    assert_eq!(family(0.9), Family::Library);
    assert_eq!(family(1.02), Family::Warpgroup);
}
