//! Convolutions: on the host, and on GPUs by im2col and by implicit GEMM.
use crate::common::{TARGETS, check, check_on, checked_text_by, compare_at, kernel};
use kiln_graph::{Graph, Random};
use kiln_machine::Arch;
use kiln_plan::{Kernel, KernelKind::Conv, Precision};

fn body(lines: &str) {
    check(Conv, &format!("graph k{lines}"));
}
fn host(lines: &str) {
    check_on(Conv, &format!("graph k{lines}"), Arch::Cpu);
}

#[test]
fn convolutions() {
    let conv = |x: &str, w: &str, attrs: &str| {
        body(&format!("(%x: f32{x}, %w: f32{w}) {{ %y = conv %x, %w {attrs}\n %z = relu %y\n return %z }}"));
        body(&format!("(%x: bf16{x}, %w: bf16{w}) {{ %y = conv %x, %w {attrs}\n return %y }}"));
    };
    let plain = "stride=[1,1] padding=[0,0] dilation=[1,1] groups=1";
    conv("[2,4,6,5]", "[8,4,1,1]", plain);
    conv("[2,4,9,8]", "[5,4,3,3]", plain);
    conv("[2,4,9,8]", "[6,4,3,2]", "stride=[2,1] padding=[1,2] dilation=[1,2] groups=1");
    conv("[2,4,9,8]", "[6,2,3,3]", "stride=[1,1] padding=[1,1] dilation=[1,1] groups=2");
    conv("[2,4,9,8]", "[4,1,3,3]", "stride=[1,1] padding=[1,1] dilation=[1,1] groups=4");
    conv(
        "[2,4,5,6]",
        "[4,3,3,3]",
        "stride=[2,2] padding=[1,1] dilation=[1,1] groups=1 transposed=true output_padding=[1,0]",
    );
    conv(
        "[1,4,5,6]",
        "[4,3,2,2]",
        "stride=[2,3] padding=[0,0] dilation=[1,2] groups=2 transposed=true output_padding=[0,0]",
    );
    host(
        "(%x: f32[2,4,20], %w: f32[6,4,5], %b: f32[6]) { %y = conv %x, %w, %b stride=[2] padding=[2] dilation=[1] \
         groups=1\n %z = gelu_erf %y\n return %z }",
    );
    body(
        "(%x: f32[2,4,9,8], %w: f32[4,1,3,3]) { %y = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=4\n \
         return %y }",
    );
}

/// Windows of one to three dimensions with every combination of stride, padding, dilation and groups, on the host.
#[test]
fn generated_convolutions() {
    for seed in 0..60u64 {
        let mut random = Random::new(seed);
        let mut upto = |n: usize| 1 + random.next_below(n);
        let dims = upto(3);
        let (images, groups, cin, cout) = (upto(3), upto(3), upto(4), upto(6));
        let mut x = vec![images, groups * cin];
        let mut w = vec![groups * cout, cin];
        let (mut stride, mut padding, mut dilation) = (vec![], vec![], vec![]);
        for _ in 0..dims {
            let (window, d) = (upto(3), upto(2));
            let p = upto(3) - 1;
            let reach = (window - 1) * d + 1;
            x.push(reach.saturating_sub(2 * p).max(1) + upto(6));
            w.push(window);
            stride.push(upto(3));
            padding.push(p);
            dilation.push(d);
        }
        let dtype = ["f32", "f32", "f64", "bf16"][upto(4) - 1];
        let attrs = format!("stride={stride:?} padding={padding:?} dilation={dilation:?}").replace(", ", ",");
        let attrs = format!("{attrs} groups={groups}");
        let args =
            format!("(%x: {dtype}{x:?}, %w: {dtype}{w:?})").replace(' ', "").replace(",%w", ", %w").replace(':', ": ");
        println!("seed {seed}: {args} {attrs}");
        host(&format!("{args} {{ %y = conv %x, %w {attrs}\n return %y }}"));
        host(&format!("{args} {{ %u = exp %x\n %y = conv %u, %w {attrs}\n %z = relu %y\n return %z }}"));
    }
}

/// Implicit GEMM: padding that neighbouring lines share and that
/// they do not, windows of any size, strides (each phase has rows of its own), groups, channels that do not fill a
/// stage.
#[test]
fn convolutions_by_windows() {
    let by_windows = |d: &str, x: &str, w: &str, attrs: &str| {
        let channels = w.split(',').next().unwrap().trim_start_matches('[');
        let text = checked_text_by(
            &format!(
                "(%x: {d}{x}, %w: {d}{w}, %b: {d}[{channels}]) {{ %y = conv %x, %w, %b {attrs}\n %z = silu %y\n \
                 return %z }}"
            ),
            if d == "f32" { Precision::Tf32 } else { Precision::Exact },
            kiln_machine::Arch::Sm90a,
            Some("implicit-gemm"),
        );
        assert!(text.contains("kernel @k_input"), "{d}{x} {w} {attrs}");
    };
    let attrs = |stride: &str, padding: &str, dilation: &str, groups: usize| {
        format!("stride={stride} padding={padding} dilation={dilation} groups={groups}")
    };
    let around = attrs("[1,1]", "[2,2]", "[1,1]", 1);
    by_windows("bf16", "[8,64,13,9]", "[24,64,5,5]", &around);
    by_windows("f32", "[8,32,13,11]", "[24,32,5,5]", &around);
    by_windows("f16", "[8,64,21,17]", "[16,64,5,5]", &attrs("[2,2]", "[2,2]", "[1,1]", 1));
    by_windows("bf16", "[8,48,15,11]", "[16,48,7,5]", &attrs("[1,1]", "[3,0]", "[1,1]", 1));
    by_windows("bf16", "[2,64,24,25]", "[16,64,5,4]", &attrs("[1,1]", "[3,2]", "[2,3]", 1));
    by_windows("f16", "[4,128,13,11]", "[32,64,5,5]", &attrs("[1,1]", "[0,1]", "[1,1]", 2));
    by_windows("bf16", "[3,64,43,25]", "[16,64,11,9]", &attrs("[3,2]", "[2,1]", "[1,2]", 1));
    by_windows("f16", "[6,64,7,40]", "[16,64,5,5]", &attrs("[1,2]", "[2,2]", "[1,1]", 1));
    by_windows("bf16", "[8,64,150]", "[16,64,25]", &attrs("[1]", "[12]", "[1]", 1));
    by_windows("bf16", "[4,64,6,7,5]", "[16,64,3,3,3]", &attrs("[1,1,1]", "[1,1,1]", "[1,1,1]", 1));
    // Few points of one image: split-K.
    by_windows("bf16", "[1,128,17,17]", "[24,128,7,7]", &attrs("[1,1]", "[3,3]", "[1,1]", 1));
}

/// Implicit GEMMs of few channels, with the channels of several points in a row: whole windows and parts of them,
/// strides, dilation, groups, padding at both ends of a line, and transposed convolutions of stride 1.
#[test]
fn windows_are_folded() {
    let cases = [
        ("bf16", "[4,16,13,9]", "[24,16,5,5]", "stride=[1,1] padding=[2,2] dilation=[1,1] groups=1", "fold-window 5"),
        ("f32", "[8,16,13,11]", "[24,16,3,3]", "stride=[1,1] padding=[1,1] dilation=[1,1] groups=1", "fold-window 3"),
        ("f16", "[4,32,11,12]", "[16,32,3,4]", "stride=[1,1] padding=[0,1] dilation=[1,1] groups=1", "fold-window 2"),
        ("f16", "[4,32,11,12]", "[16,32,3,4]", "stride=[1,1] padding=[0,3] dilation=[2,2] groups=1", "fold-window 4"),
        ("bf16", "[4,8,21,24]", "[16,8,5,9]", "stride=[2,2] padding=[2,4] dilation=[1,1] groups=1", "fold-window 3"),
        ("bf16", "[4,8,21,24]", "[16,8,5,9]", "stride=[2,3] padding=[2,4] dilation=[1,2] groups=1", "fold-window 9"),
        (
            "f32",
            "[2,3,9,14,14]",
            "[16,3,3,3,3]",
            "stride=[1,1,1] padding=[1,0,1] dilation=[1,1,1] groups=1",
            "fold-window 3",
        ),
        ("f32", "[16,8,60]", "[32,4,6]", "stride=[1] padding=[5] dilation=[1] groups=2", "fold-window 3"),
        ("f32", "[16,4,60]", "[32,4,6]", "stride=[4] padding=[2] dilation=[3] groups=1", "fold-window 2"),
        ("bf16", "[4,24,300]", "[16,24,8]", "stride=[1] padding=[0] dilation=[1] groups=1", "fold-window 8"),
        ("f16", "[2,32,12,12]", "[32,8,3,7]", "stride=[1,1] padding=[0,3] transposed=true", "fold-window 7"),
    ];
    for (dtype, x, w, attrs, step) in cases {
        let transposed = attrs.contains("transposed");
        let extents: Vec<usize> = w.trim_matches(['[', ']']).split(',').map(|n| n.parse().expect("a size")).collect();
        let columns = extents[usize::from(transposed)];
        let lines = format!(
            "(%x: {dtype}{x}, %w: {dtype}{w}, %b: {dtype}[{columns}]) {{ %y = conv %x, %w, %b {attrs}\n %z = silu %y\n \
             return %z }}"
        );
        let precision = if dtype == "f32" { Precision::Tf32 } else { Precision::Exact };
        let body: Graph = format!("graph k{lines}").parse().unwrap_or_else(|e| panic!("{e}\n{lines}"));
        let k = Kernel { precision, ..kernel(Conv, body) };
        let arch = kiln_machine::Arch::Sm90a;
        let all = kiln_lower::schedules(&k, arch.machine()).expect("it lowers");
        assert!(all.iter().any(|s| s.0.to_string().contains(step)), "no `{step}`: {lines}");
        checked_text_by(&lines, precision, arch, Some(&format!("implicit-gemm; {step}")));
    }
}

/// What folds or joins, asked for where it does not apply, is refused with the reason.
#[test]
fn steps_of_other_convolutions_are_refused() {
    let cases = [
        (
            "fold-window 3; tensor-core mma 64x64x16; bind warp 4",
            "%w: f16[24,16,3,3]",
            "padding=[1,1]",
            "`fold-window 3` does not apply",
        ),
        (
            "implicit-gemm; fold-window 2; tensor-core wgmma 128x64x64; stage a,b shared 4; persist 132",
            "%w: f16[24,16,3,3]",
            "padding=[1,1]",
            "`fold-window 2` does not fit: numbers of points that divide the window and multiply fewer zeros: 3",
        ),
        (
            "join-residues 1; tensor-core mma 64x64x16; bind warp 4",
            "%w: f16[24,16,3,3]",
            "padding=[1,1]",
            "`join-residues 1`",
        ),
    ];
    for (schedule, w, attrs, why) in cases {
        let text = format!("graph k(%x: f16[4,16,13,9], {w}) {{ %y = conv %x, %w {attrs}\n return %y }}");
        let mut k = kernel(Conv, text.parse().unwrap_or_else(|e| panic!("{e}\n{text}")));
        k.schedule = Some(schedule.parse().expect("a schedule"));
        let refused = kiln_lower::lower(&k, kiln_machine::Arch::Sm90a).expect_err(schedule).to_string();
        assert!(refused.contains(why), "{schedule}: {refused}");
    }
}

/// Transposed convolutions in parts, by patches and as implicit GEMMs: strides, windows shorter than the stride
/// (residues without a point), padding beyond what the window reaches, dilation, groups, results of one position, and
/// what follows.
#[test]
fn transposed_convolutions_in_parts() {
    let cases = [
        ("[2,32,9]", "[32,8,4]", "stride=[2] padding=[1]"),
        ("[2,32,9]", "[32,8,3]", "stride=[2] padding=[1] output_padding=[1]"),
        ("[2,32,9]", "[32,8,2]", "stride=[4] padding=[0] output_padding=[3]"),
        ("[2,32,9]", "[32,8,7]", "stride=[3] padding=[5]"),
        ("[2,32,1]", "[32,8,1]", "stride=[3] padding=[0]"),
        ("[1,32,5]", "[32,8,5]", "stride=[4] padding=[4] dilation=[3]"),
        ("[2,32,7,6]", "[32,16,4,4]", "stride=[2,2] padding=[1,1]"),
        ("[2,32,7,6]", "[32,8,3,3]", "stride=[2,2] padding=[1,1] output_padding=[1,1]"),
        ("[2,32,7,6]", "[32,8,3,3]", "stride=[1,1] padding=[1,1]"),
        ("[2,32,7,6]", "[32,8,3,5]", "stride=[1,3] padding=[2,0]"),
        ("[2,64,5,4]", "[64,8,1,1]", "stride=[2,2] padding=[0,0]"),
        ("[2,64,5,4]", "[64,3,5,5]", "stride=[2,3] padding=[4,4] groups=2"),
        ("[2,32,5,4]", "[32,8,3,2]", "stride=[2,2] padding=[1,0] dilation=[2,3]"),
        ("[2,32,4,3,5]", "[32,8,3,3,3]", "stride=[2,2,2] padding=[1,1,1] output_padding=[1,1,1]"),
        ("[1,32,4,3,5]", "[32,8,2,2,2]", "stride=[2,2,2] padding=[0,0,0]"),
    ];
    for dtype in ["bf16", "f32"] {
        for (x, w, steps) in cases {
            let groups = if steps.contains("groups") { 2 } else { 1 };
            let columns = w.split(',').nth(1).and_then(|n| n.parse::<usize>().ok()).expect("channels") * groups;
            let args = format!("(%x: {dtype}{x}, %w: {dtype}{w}, %b: {dtype}[{columns}])");
            let g: Graph =
                format!("graph k{args} {{ %c = conv %x, %w, %b transposed=true {steps}\n %y = tanh %c\n return %y }}")
                    .parse()
                    .unwrap_or_else(|e| panic!("{e}"));
            let inputs = kiln_graphgen::inputs(&g, 3);
            for arch in [Arch::Sm80, Arch::Sm90a] {
                let tried = tried_forms(&kernel(Conv, g.clone()), &inputs, arch);
                let implicit = arch == Arch::Sm90a && dtype == "bf16" && !w.ends_with(",1,1]") && !w.ends_with(",1]");
                assert!(!implicit || tried.iter().any(|t| t.implicit), "{arch:?}: no implicit GEMM\n{g}");
            }
        }
    }
}

/// A form of a convolution's schedules.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Form {
    implicit: bool,
    staged: bool,
    /// Axes of which residues are joined.
    joined: usize,
}

/// Compares a convolution with the interpreter by one schedule of each form; gives those that there are. Tiles differ
/// in size only.
fn tried_forms(k: &kiln_plan::Kernel, inputs: &[kiln_graph::Tensor], arch: Arch) -> Vec<Form> {
    let mut tried = vec![];
    for (schedule, _) in kiln_lower::schedules(k, arch.machine()).unwrap_or_else(|e| panic!("{e}")) {
        let text = schedule.to_string();
        let form = Form {
            implicit: text.contains("implicit-gemm"),
            staged: text.contains("stage"),
            joined: text.split("join-residues ").nth(1).map_or(0, |n| n[..1].parse().expect("a number of axes")),
        };
        if tried.contains(&form) {
            continue;
        }
        let by = kiln_plan::Kernel { schedule: Some(schedule), ..k.clone() };
        match compare_at(&by, inputs, arch.machine()) {
            Ok(Ok(())) => tried.push(form),
            Ok(Err(_)) => {}
            Err(e) => panic!("{arch:?} by {text}: {e:.600}\n{}", k.body),
        }
    }
    assert!(!tried.is_empty(), "{arch:?}: no schedule\n{}", k.body);
    tried
}

/// Transposed convolutions drawn at random, whose innermost windows no stride divides, by each form: residues in parts
/// and joined. Joined, an infinite input may be multiplied by a weight of zero, so kernels that round as the graph does
/// have none.
#[test]
fn residues_are_joined() {
    let mut joined = vec![];
    for seed in 0..16u64 {
        let mut random = Random::new(seed);
        let mut upto = |n: usize| 1 + random.next_below(n);
        let (dims, groups, channels) = (upto(3), upto(2), 8 * upto(4));
        let mut x = vec![upto(2), groups * channels];
        let mut w = vec![groups * channels, 2 + upto(7)];
        let (mut stride, mut padding, mut output_padding) = (vec![], vec![], vec![]);
        for d in 0..dims {
            let (mut s, mut window) = (upto(3), upto(if dims > 2 { 3 } else { 5 }));
            if d + 1 == dims {
                s = 1 + upto(3);
                window += usize::from(window % s == 0);
            }
            let p = upto(window) - 1;
            // The result has at least two positions.
            x.push(1 + upto(if dims > 2 { 2 } else { 5 }) + 2 * p / s);
            w.push(window);
            output_padding.push(upto(s) - 1);
            stride.push(s);
            padding.push(p);
        }
        let (dtype, rows) = (["f32", "bf16", "f16"][upto(3) - 1], groups * w[1]);
        let text = format!(
            "graph k(%x: {dtype}{x:?}, %w: {dtype}{w:?}, %b: {dtype}[{rows}]) {{ %c = conv %x, %w, %b transposed=true \
             stride={stride:?} padding={padding:?} output_padding={output_padding:?} groups={groups}\n %y = mish %c\n \
             return %y }}"
        );
        println!("seed {seed}: {text}");
        let g: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let inputs = kiln_graphgen::inputs(&g, seed);
        for arch in [Arch::Sm80, Arch::Sm90a] {
            let k = kernel(Conv, g.clone());
            let tried = tried_forms(&k, &inputs, arch);
            let joins = arch == Arch::Sm90a && dtype != "f32";
            // The innermost axis alone always, others where their residues are several.
            assert_eq!(tried.iter().any(|t| t.joined == 1), joins, "{arch:?}: {tried:?}\n{g}");
            joined.extend(tried.iter().map(|t| t.joined));
            let strict = kiln_plan::Kernel { rounding: kiln_plan::Rounding::PerOp, ..k.clone() };
            let all = kiln_lower::schedules(&strict, arch.machine()).unwrap_or_else(|e| panic!("{e}\n{g}"));
            assert!(all.iter().all(|(s, _)| !s.to_string().contains("join-residues")), "{arch:?}\n{g}");
        }
    }
    assert!((0..=3).all(|n| joined.contains(&n)), "{joined:?}");
}

/// What follows a transposed convolution is priced once, however many parts compute it, and joined parts are cheaper
/// where others store every other element of a line.
#[test]
fn epilogues_of_parts_are_priced_once() {
    let machine = Arch::Sm90a.machine();
    let priced = |after: &str| {
        let g: Graph = format!(
            "graph k(%x: bf16[32,64,64,64], %w: bf16[64,64,3,3]) {{ %c = conv %x, %w stride=[2,2] padding=[1,1] \
             output_padding=[1,1] transposed=true\n {after} }}"
        )
        .parse()
        .unwrap_or_else(|e| panic!("{e}"));
        kiln_lower::schedules(&kernel(Conv, g), machine).unwrap_or_else(|e| panic!("{e}"))
    };
    let (plain, mish) = (priced("return %c"), priced("%y = mish %c\n return %y"));
    let weight = kiln_graph::Op::Unary(kiln_graph::UnaryOp::Mish).weight();
    let elements = 32.0 * 64.0 * 128.0 * 128.0;
    let units = &machine.units;
    // By all multiprocessors, if no other part of a tile's time hides it.
    let alone = elements * weight / machine.warpgroups.after / units.multiprocessors as f64 / units.clock * 1e6;
    let mut compared = 0;
    for (schedule, price) in &plain {
        let text = schedule.to_string();
        let same = mish.iter().find(|m| m.0 == *schedule).filter(|_| text.contains("implicit-gemm"));
        let Some((_, with)) = same else { continue };
        compared += 1;
        // Tiles are larger than the matmul, and the last wave is not full.
        let more = with.us - price.us;
        assert!(more < 1.5 * alone, "{text}: {more} us on top of {}, {alone} expected", price.us);
    }
    assert!(compared > 20, "{compared} schedules");
    let least = |joined: bool| {
        let some = plain.iter().filter(|s| s.0.to_string().contains("join-residues") == joined);
        some.map(|s| s.1.us).fold(f64::INFINITY, f64::min)
    };
    assert!(least(true) < least(false), "whole lines");
}

/// Transposed convolutions drawn at random, on the host: in parts, and by columns where kernels round as the graph
/// does.
#[test]
fn transposed_convolutions_on_the_host() {
    for seed in 0..40u64 {
        let mut random = Random::new(seed);
        let mut upto = |n: usize| 1 + random.next_below(n);
        let (dims, groups) = (upto(3), upto(2));
        let mut x = vec![upto(3), groups * (2 + upto(6))];
        let mut w = vec![x[1], 2 + upto(4)];
        let (mut stride, mut padding, mut dilation, mut output_padding) = (vec![], vec![], vec![], vec![]);
        for _ in 0..dims {
            let few = dims > 2;
            let (s, window, d) = (upto(4), upto(if few { 2 } else { 4 }), 1 + upto(4) / 4);
            let p = upto((window - 1) * d + 1) - 1;
            x.push(1 + upto(if few { 2 } else { 5 }) + 2 * p / s);
            w.push(window);
            output_padding.push(upto(s.max(d)) - 1);
            stride.push(s);
            padding.push(p);
            dilation.push(d);
        }
        let dtype = ["f32", "f64", "bf16"][upto(3) - 1];
        let after = ["return %c", "%y = silu %c\n return %y"][upto(2) - 1];
        let text = format!(
            "graph k(%x: {dtype}{x:?}, %w: {dtype}{w:?}, %b: {dtype}[{}]) {{ %c = conv %x, %w{} transposed=true \
             stride={stride:?} \
             padding={padding:?} dilation={dilation:?} output_padding={output_padding:?} groups={groups}\n {after} }}",
            groups * w[1],
            ["", ", %b"][upto(2) - 1],
        );
        println!("seed {seed}: {text}");
        let g: Graph = text.parse().unwrap_or_else(|e| panic!("{e}"));
        let inputs = kiln_graphgen::inputs(&g, seed);
        for rounding in [kiln_plan::Rounding::AtStores, kiln_plan::Rounding::PerOp] {
            let k = kiln_plan::Kernel { rounding, ..kernel(Conv, g.clone()) };
            match compare_at(&k, &inputs, Arch::Cpu.machine()) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => panic!("{e}\n{g}"),
                Err(e) => panic!("{rounding:?}: {e:.600}\n{g}"),
            }
            // In parts, no product has more elements than the result.
            let points = g.values().map(|v| g.ty(v).count()).max().unwrap_or(0);
            let lowered = kiln_lower::lower(&k, Arch::Cpu).unwrap_or_else(|e| panic!("{e}"));
            for step in lowered.steps.iter().filter(|_| rounding == kiln_plan::Rounding::AtStores) {
                let kiln_plan::exec::Work::Gemm(call) = step else { continue };
                assert!(call.m * call.n * call.batch.iter().product::<usize>() <= points, "{g}");
            }
        }
    }
}

/// Residues of the innermost axis are stored by neighbouring lanes, in kernels whose consumers share tiles and in those
/// that take turns; where pairs are aligned in memory, a thread stores both elements of one.
#[test]
fn residues_are_stored_as_lines() {
    let tile = "tensor-core wgmma 128x128x64; stage a,b shared 4";
    let joined = "implicit-gemm; join-residues 1";
    let cases = [
        ("[64,64,4,4]", "padding=[1,1]", "implicit-gemm", false),
        ("[64,64,4,4]", "padding=[0,0]", "implicit-gemm", true),
        ("[64,64,3,3]", "padding=[1,1] output_padding=[1,1]", joined, true),
        ("[64,64,3,3]", "padding=[0,0]", joined, false),
    ];
    for (w, steps, form, aligned) in cases {
        for turns in ["", "; ping-pong"] {
            let g: Graph = format!(
                "graph k(%x: bf16[4,64,32,32], %w: bf16{w}) {{ %c = conv %x, %w stride=[2,2] transposed=true {steps}\n \
                 return %c }}"
            )
            .parse()
            .unwrap_or_else(|e| panic!("{e}"));
            let by = format!("{form}; {tile}{turns}");
            let schedule = Some(by.parse().expect("a schedule"));
            let k = kiln_plan::Kernel { schedule, ..kernel(Conv, g) };
            let lowered = kiln_lower::lower(&k, Arch::Sm90a).unwrap_or_else(|e| panic!("{steps}: {e}"));
            let mut stores = 0;
            for step in lowered.steps {
                let kiln_plan::exec::Work::Block { code, .. } = step else { continue };
                let multiplies = code.insts.iter().any(|d| matches!(d.op, kiln_block::Op::Wgmma { .. }));
                let placed = kiln_block::passes::layout::assign(&code);
                placed.walk(&mut |_, d| {
                    if !matches!(d.op, kiln_block::Op::Store(_)) || !multiplies {
                        return;
                    }
                    stores += 1;
                    let layout = placed.value(d.args[1]).layout.as_ref().expect("a layout");
                    let pair = (layout.registers[0] == [1, 0]) && layout.lanes[0] == [0, 1];
                    let lanes = layout.lanes[0] == [1, 0] && layout.lanes[1] == [0, 1];
                    assert!(if aligned { pair } else { lanes }, "{w} {steps} by {by}: {layout:?}");
                });
            }
            assert!(stores > 0, "{w} {steps} by {by}");
        }
    }
}

/// Infinities and NaN reach the results that they reach in PyTorch: those whose windows contain them, and no others. On
/// GPUs weights are multiplied by the zeros of padding, as those of ordinary convolutions are, so only special inputs
/// are exact there, and those where residues are not joined.
#[test]
fn what_is_not_finite_stays_where_it_is() {
    let specials = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    for dtype in ["f32", "f64", "bf16"] {
        for (x, w, steps) in [
            ("[1,1,4]", "[1,1,3]", "stride=[2]"),
            ("[2,8,6]", "[8,16,4]", "stride=[2] padding=[1]"),
            ("[2,8,5,6]", "[8,6,3,3]", "stride=[2,2] padding=[1,1] output_padding=[1,0]"),
            ("[1,8,4,4]", "[8,8,4,2]", "stride=[3,1] padding=[0,1] dilation=[1,2] groups=2"),
            ("[1,4,5,5]", "[4,1,3,3]", "stride=[2,2] groups=4"),
            ("[1,70,3]", "[70,2,3]", "stride=[2]"),
        ] {
            let text = format!(
                "graph k(%x: {dtype}{x}, %w: {dtype}{w}) {{ %y = conv %x, %w transposed=true {steps}\n return %y }}"
            );
            let g: Graph = text.parse().unwrap();
            for (which, special) in [(0, 0), (1, 0), (1, 1), (1, 2), (0, 2)] {
                let mut inputs = kiln_graphgen::inputs(&g, 5);
                let count = inputs[which].ty.count();
                for at in [count / 3, count - 1] {
                    inputs[which].set_f64(at, specials[special]);
                }
                for target in TARGETS.into_iter().filter(|t| which == 0 || !t.is_gpu()) {
                    // On hosts weights are multiplied by zeros too, unless kernels round as the graph does.
                    let rounding = if which == 1 { kiln_plan::Rounding::PerOp } else { kiln_plan::Rounding::AtStores };
                    let k = kiln_plan::Kernel { rounding, ..kernel(Conv, g.clone()) };
                    let all = kiln_lower::schedules(&k, target.machine()).unwrap_or_else(|e| panic!("{e}"));
                    let schedule = all.into_iter().map(|s| s.0).find(|s| !s.to_string().contains("join-residues"));
                    match compare_at(&kiln_plan::Kernel { schedule, ..k }, &inputs, target.machine()) {
                        Ok(Ok(())) => {}
                        Ok(Err(e)) => panic!("{target:?}: {e}\n{text}"),
                        Err(e) => panic!("{target:?}, operand {which}: {e:.500}\n{text}"),
                    }
                }
            }
        }
    }
}
