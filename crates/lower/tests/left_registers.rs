//! Matmuls in tf32 whose left operand goes through registers, and results that are stored transposed.
use crate::common::{compare_kernel, in_tf32, kernel};
use kiln_block::Op;
use kiln_graph::Graph;
use kiln_lower::{LowerError, lower, schedules};
use kiln_machine::Arch;
use kiln_plan::exec::{Steps, Work};
use kiln_plan::{Kernel, KernelKind, Precision};

const GPU: Arch = Arch::Sm90a;

fn of(lines: &str, precision: Precision, schedule: Option<&str>) -> Kernel {
    let body: Graph = format!("graph k{lines}").parse().unwrap_or_else(|e| panic!("{e}\n{lines}"));
    let kind = if lines.contains("conv") { KernelKind::Conv } else { KernelKind::Gemm };
    let schedule = schedule.map(|s| s.parse().unwrap_or_else(|e| panic!("{e}: {s}")));
    Kernel { precision, schedule, ..kernel(kind, body) }
}

/// The programs of a schedule, which compute the same as the graph.
fn computes(lines: &str, precision: Precision, schedule: &str) -> Steps<kiln_block::BlockProgram> {
    let k = of(lines, precision, Some(schedule));
    let about = format!("{lines}\nby {schedule}");
    let steps = lower(&k, GPU).unwrap_or_else(|e| panic!("{e}\n{about}"));
    let mut inputs = kiln_graphgen::inputs(&k.body, 7);
    inputs.iter_mut().for_each(in_tf32);
    let compared = compare_kernel(&k, &inputs, GPU).unwrap_or_else(|e| panic!("{e}\n{about}"));
    compared.unwrap_or_else(|e| panic!("{e}\n{about}"));
    steps
}

/// Whether a program multiplies from registers, and whether it stores transposed tiles.
fn forms(steps: &Steps<kiln_block::BlockProgram>) -> [bool; 2] {
    let mut found = [false; 2];
    for step in &steps.steps {
        let Work::Block { code, .. } = step else { continue };
        let is_permuted = |v| code.insts.iter().any(|d| d.results[..] == [v] && matches!(d.op, Op::Permute(_)));
        code.walk(&mut |_, d| {
            found[0] |= d.left_in_registers().is_some();
            found[1] |= d.op == Op::SharedStore && is_permuted(d.args[2]);
        });
    }
    found
}

#[test]
fn left_operands_in_registers_compute_the_same() {
    let turned = "(%x: f32[{k},{m}], %w: f32[{n},{k}]) { %t = permute %x perm=[1,0]\n %y = linear %t, %w\n return %y }";
    let plain = "(%x: f32[{m},{k}], %w: f32[{k},{n}]) { %y = dot %x, %w\n return %y }";
    let rest = "(%x: f32[{m},{k}], %w: f32[{k},{n}], %v: f32[{n}], %r: f32[{m},{n}]) { %c = dot %x, %w\n \
                %d = add %c, %v\n %s = silu %d\n %y = add %s, %r\n return %y }";
    let batched = "(%x: f32[3,{m},{k}], %w: f32[3,{k},{n}]) { %y = dot %x, %w\n return %y }";
    let sizes = |text: &str, m: usize, n: usize, k: usize| {
        let one = |text: String, name: &str, n: usize| text.replace(name, &n.to_string());
        one(one(one(text.to_string(), "{m}", m), "{n}", n), "{k}", k)
    };
    for (lines, m, n, k, schedule, transposed) in [
        (turned, 132, 70, 68, "tensor-core wgmma 128x64x32; stage a,b shared 3", false),
        (turned, 260, 132, 32, "tensor-core wgmma 128x128x32; stage a,b shared 2; ping-pong", false),
        (turned, 132, 60, 512, "split-reduce k 2; tensor-core wgmma 64x64x64; stage a,b shared 3", false),
        (turned, 256, 64, 64, "tensor-core wgmma 128x64x32; stage a,b shared 3; bind cluster 2", false),
        (plain, 68, 132, 100, "swap a,b; tensor-core wgmma 128x128x32; stage a,b shared 2", true),
        (plain, 60, 264, 64, "swap a,b; tensor-core wgmma 256x128x32; stage a,b shared 2", true),
        (plain, 64, 260, 36, "swap a,b; tensor-core wgmma 64x192x32; stage a,b shared 2; ping-pong", true),
        (plain, 136, 300, 64, "swap a,b; stage b global; tensor-core wgmma 128x64x32; stage a,b shared 3", true),
        (rest, 68, 132, 100, "swap a,b; tensor-core wgmma 128x64x32; stage a,b shared 3", true),
        (batched, 68, 132, 64, "swap a,b; tensor-core wgmma 64x64x32; stage a,b shared 3", true),
        (plain, 68, 134, 64, "swap a,b; stage a global; tensor-core wgmma 128x64x32; stage a,b shared 3", false),
    ] {
        let found = forms(&computes(&sizes(lines, m, n, k), Precision::Tf32, schedule));
        let read = !schedule.contains("stage a global");
        assert_eq!(found, [read, transposed], "{lines} {m}x{n}x{k} by {schedule}");
    }
}

/// A convolution by windows of one point reads its input in place, and rounds it to nearest in registers.
#[test]
fn pointwise_convolutions_read_their_input_in_place() {
    let attrs = "stride=[1,1] padding=[0,0] dilation=[1,1]";
    for (x, w, groups, after, schedule) in [
        (
            "[2,36,16,20]",
            "[40,36,1,1]",
            1,
            "relu",
            "swap a,b; stage b global; tensor-core wgmma 128x64x32; stage a,b shared 3",
        ),
        (
            "[2,64,16,20]",
            "[136,32,1,1]",
            2,
            "silu",
            "swap a,b; stage b global; tensor-core wgmma 256x128x32; stage a,b shared 2",
        ),
        (
            "[3,32,14,18]",
            "[64,32,1,1]",
            1,
            "neg",
            "swap a,b; stage b global; tensor-core wgmma 64x64x32; stage a,b shared 3; ping-pong",
        ),
    ] {
        let n = w[1..].split(',').next().expect("channels");
        let lines = format!(
            "(%x: f32{x}, %w: f32{w}, %b: f32[{n}]) {{ %c = conv %x, %w, %b {attrs} groups={groups}\n \
             %y = {after} %c\n return %y }}"
        );
        assert_eq!(forms(&computes(&lines, Precision::Tf32, schedule)), [true, true], "{lines}");
    }
}

/// Half types store the result of swapped operands transposed, too, but not few columns.
#[test]
fn swapped_results_are_stored_by_tensor_maps() {
    for (dtype, m, n) in [("bf16", 16, 16), ("bf16", 40, 64), ("f16", 72, 128)] {
        let lines =
            format!("(%x: {dtype}[{m},256], %w: {dtype}[200,256]) {{ %c = linear %x, %w\n %y = silu %c\n return %y }}");
        let found =
            computes(&lines, Precision::Exact, &format!("swap a,b; tensor-core wgmma 64x{n}x64; stage a,b shared 4"));
        assert_eq!(forms(&found), [false, m > 32], "{lines}");
    }
}

#[test]
fn registers_are_the_default_where_an_operand_is_not_k_major() {
    let first = |lines: &str| {
        let k = of(lines, Precision::Tf32, None);
        let all = schedules(&k, GPU.machine()).unwrap_or_else(|e| panic!("{e}\n{lines}"));
        (all[0].0.to_string(), forms(&lower(&k, GPU).unwrap_or_else(|e| panic!("{e}\n{lines}"))))
    };
    for (lines, swap) in [
        (
            "(%x: f32[16,64,256,256], %w: f32[128,64,1,1]) { %y = conv %x, %w stride=[1,1] padding=[0,0] \
             dilation=[1,1] groups=1\n return %y }",
            true,
        ),
        (
            "(%x: f32[256,65536], %w: f32[128,256]) { %t = permute %x perm=[1,0]\n %y = linear %t, %w\n return %y }",
            false,
        ),
        ("(%x: f32[128,256], %w: f32[256,65536]) { %y = dot %x, %w\n return %y }", true),
    ] {
        let (schedule, found) = first(lines);
        assert_eq!(schedule.starts_with("swap a,b"), swap, "{schedule}\n{lines}");
        assert_eq!(found, [true, swap], "{schedule}\n{lines}");
    }
}

#[test]
fn schedules_that_need_another_order_are_refused() {
    let refused = |lines: &str, precision: Precision, schedule: &str| {
        lower(&of(lines, precision, Some(schedule)), GPU).map(|_| ()).map_err(LowerError::why).expect_err(schedule)
    };
    let dot = "(%x: f32[128,256], %w: f32[256,512]) { %y = dot %x, %w\n return %y }";
    let conv = "(%x: f32[2,64,32,32], %w: f32[128,64,1,1]) { %y = conv %x, %w stride=[1,1] padding=[0,0] \
                dilation=[1,1] groups=1\n return %y }";
    for (lines, precision, schedule, why) in [
        (dot, Precision::Tf32, "tensor-core wgmma 128x64x32; stage a,b shared 3", "`fma`, not `tensor-core wgmma`"),
        (dot, Precision::Exact, "swap a,b; tensor-core wgmma 128x64x32; stage a,b shared 3", "`fma`, not"),
        (
            dot,
            Precision::Tf32,
            "swap a,b; tensor-core wgmma 128x32x32; stage a,b shared 3",
            "tf32 none narrower than 64",
        ),
        (dot, Precision::Tf32, "swap a,b; tensor-core wgmma 256x128x32; stage a,b shared 2; ping-pong", "registers"),
        (conv, Precision::Tf32, "swap a,b; tensor-core wgmma 128x64x32; stage a,b shared 3", "`stage b global`"),
        (conv, Precision::Tf32, "stage a global; tensor-core wgmma 128x64x32; stage a,b shared 3", "`stage b global`"),
    ] {
        let e = refused(lines, precision, schedule);
        assert!(e.contains(why), "{schedule}: {e}");
    }
}

/// Consumers of 128 rows read twice as much to registers between matmuls: they are priced for it.
#[test]
fn reads_to_registers_are_priced() {
    let lines = "(%x: f32[4096,4096], %w: f32[4096,4096]) { %y = dot %x, %w\n return %y }";
    let all = schedules(&of(lines, Precision::Tf32, None), GPU.machine()).unwrap_or_else(|e| panic!("{e}"));
    let us = |tile: &str| {
        let tile = format!("swap a,b; tensor-core wgmma {tile}; ");
        let found = all.iter().filter(|s| s.0.to_string().starts_with(&tile) && !s.0.to_string().contains("cluster"));
        found.map(|s| s.1.us).fold(f64::INFINITY, f64::min)
    };
    // Measured: 348 and 509 us.
    let [few, many] = [us("128x256x32"), us("256x128x32")];
    assert!((330.0..370.0).contains(&few) && (470.0..550.0).contains(&many), "{few} {many}");
}
