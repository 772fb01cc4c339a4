//! Indices out of range: the program reports which one, wherever in a kernel it is used, and ignores masked lanes.
use crate::common::{self, TARGETS, compare};
use kiln_graph::{Graph, Tensor, Type, ValueId};
use kiln_plan::KernelKind::{self, Pointwise, Reduction, Scatter};

struct Case {
    kind: KernelKind,
    text: &'static str,
    /// The axis' length; indices are input 1.
    extent: usize,
}

/// Shapes that fill no tile, so that every program has masked lanes.
const CASES: [Case; 8] = [
    Case { kind: Pointwise, text: "%x: f32[37,19], %i: i64[5,11] -> %y = take %x, %i axis=0", extent: 37 },
    Case { kind: Pointwise, text: "%x: f32[7,19], %i: i64[7,300] -> %y = gather %x, %i axis=1", extent: 19 },
    Case { kind: Pointwise, text: "%x: f32[37,19], %i: i32[3,19] -> %y = gather %x, %i axis=0", extent: 37 },
    Case {
        kind: Pointwise,
        text: "%x: f32[37,19], %i: i64[5] -> %t = take %x, %i axis=0\n%y = pad %t, 0.5 lo=[2,1] hi=[3,0]",
        extent: 37,
    },
    Case {
        kind: Reduction,
        text: "%x: f32[37,19], %i: i64[6] -> %t = take %x, %i axis=0\n%y = reduce.sum %t axes=[1]",
        extent: 37,
    },
    Case {
        kind: Reduction,
        text: "%x: f32[37,2000], %i: i64[3,1500] -> %s = slice %x axis=0 start=0 len=3\n%t = gather %s, %i axis=1\n\
               %y = softmax %t axis=1",
        extent: 2000,
    },
    Case {
        kind: Scatter,
        text: "%x: f32[40,7], %i: i64[9,7], %s: f32[9,7] -> %y = scatter %x, %i, %s axis=0 mode=replace",
        extent: 40,
    },
    Case {
        kind: Scatter,
        text: "%x: f32[5,70], %i: i64[5,33], %s: f32[5,33] -> %y = scatter %x, %i, %s axis=1 mode=add",
        extent: 70,
    },
];

fn body(case: &Case) -> Graph {
    let (inputs, ops) = case.text.split_once(" -> ").expect("inputs, then ops");
    let text = format!("graph k({inputs}) {{ {ops}\n return %y }}");
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}
/// Indices in range, the first and the last of the axis among them; `wrong` replaces one of them.
fn inputs(g: &Graph, extent: usize, wrong: Option<(usize, i64)>) -> Vec<Tensor> {
    let one = |(n, v): (usize, &ValueId)| {
        let ty: Type = g.ty(*v).clone();
        let mut t = kiln_graph::random_tensor(ty, n as u64, 1.0);
        if n == 1 {
            for i in 0..t.ty.count() {
                t.set_i64(i, [0, extent as i64 - 1, (i * 7 % extent) as i64][i % 3]);
            }
            if let Some((at, v)) = wrong {
                t.set_i64(at % t.ty.count(), v);
            }
        }
        t
    };
    g.inputs.iter().enumerate().map(one).collect()
}

#[test]
fn indices_in_range_are_no_fault() {
    for case in &CASES {
        let g = body(case);
        for target in TARGETS {
            let done = compare(case.kind, &g, &inputs(&g, case.extent, None), target);
            done.unwrap_or_else(|e| panic!("{}: {e}", case.text)).unwrap_or_else(|e| panic!("{}: {e}", case.text));
        }
    }
}

#[test]
fn an_index_out_of_range_is_named() {
    for case in &CASES {
        let g = body(case);
        let site = g.values().find(|v| matches!(g.op(*v).name(), "take" | "gather" | "scatter")).expect("the op");
        // An offset in i32 would truncate the last two.
        let far = if case.text.contains("i32[") { i64::from(i32::MAX) } else { 1 << 32 };
        for wrong in [case.extent as i64, -1, -(case.extent as i64), far, -far] {
            for at in [0, 5, usize::MAX] {
                let given = inputs(&g, case.extent, Some((at, wrong)));
                let want = common::interpreted(&g, &given).expect_err("the interpreter refuses it");
                let said = format!("index {wrong} is out of range for an axis of {}", case.extent);
                assert!(want.contains(&said), "{}: {want}", case.text);
                for target in TARGETS {
                    let got = common::ran(case.kind, &g, &given, target).expect_err(case.text);
                    assert_eq!(got, format!("{site}: index {wrong} is out of range"), "{}", case.text);
                }
            }
        }
    }
}

/// Indices that cannot be out of range are not checked.
#[test]
fn indices_that_are_known_are_not_checked() {
    for ops in [
        "%i = iota axis=0 : i64[19]\n%y = take %x, %i axis=1",
        "%a = max %j, 0\n%i = min %a, 18\n%y = take %x, %i axis=1",
        "%i = remainder %j, 19\n%y = take %x, %i axis=1",
    ] {
        let text = format!("graph k(%x: f32[3,19], %j: i64[19]) {{ {ops}\n return %y }}");
        let g: Graph = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
        for target in TARGETS {
            assert!(!common::lowered(Pointwise, &g, target).contains("check "), "{text}");
        }
    }
    let g: Graph =
        "graph k(%x: f32[3,19], %j: i64[19]) { %y = take %x, %j axis=1\n return %y }".parse().expect("a graph");
    assert!(common::lowered(Pointwise, &g, TARGETS[0]).contains("check "));
}
