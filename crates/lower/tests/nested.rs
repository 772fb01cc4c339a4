//! Functions of rows, seen through views of a part of them, under another reduction or scan of the same rows: the inner
//! reduction always covers the whole row.
use crate::common::{TARGETS, check, compare, kernel};
use kiln_graph::Graph;
use kiln_lower::{LowerError, lower};
use kiln_plan::KernelKind::{self, Reduction, Scan};

/// Row lengths: one element, rows that fit registers or tiles, with and without a tail.
const LENGTHS: [usize; 12] = [1, 3, 4, 5, 7, 8, 31, 64, 77, 255, 1000, 4097];

/// Checks a body over rows of `n` along the last, the middle or the first axis, which replaces `TYPE`, `AXIS` and names
/// of lengths.
fn body(kind: KernelKind, lines: &str, dtype: &str, n: usize, axis: usize) {
    let half = n / 2;
    let shape = match axis {
        0 => format!("{n},3"),
        1 => format!("2,{n},3"),
        _ => format!("2,2,{n}"),
    };
    // Pads and crops along the axis.
    let pad = |k: usize| {
        let one = |a: usize| if a == axis { k.to_string() } else { "0".into() };
        let rank = if axis == 0 { 2 } else { 3 };
        format!("[{}]", (0..rank).map(one).collect::<Vec<_>>().join(","))
    };
    let text = lines
        .replace("TYPE", &format!("{dtype}[{shape}]"))
        .replace("AXIS", &axis.to_string())
        .replace("NONE", &pad(0))
        .replace("ONE", &pad(1))
        .replace("PADHALF", &pad(half))
        .replace("PADREST", &pad(n - half))
        .replace("HALF", &half.to_string())
        .replace("REST", &(n - half).to_string())
        .replace("LESS", &(n - 1).to_string());
    check(kind, &format!("graph k{text}"));
}

fn everywhere(kind: KernelKind, lines: &str) {
    for n in LENGTHS {
        for axis in [2, 1, 0] {
            body(kind, lines, "f32", n, axis);
        }
    }
    for dtype in ["f64", "f16", "bf16"] {
        for n in [5, 64, 1000] {
            body(kind, lines, dtype, n, 2);
            body(kind, lines, dtype, n, 0);
        }
    }
}

#[test]
fn padded_softmax() {
    everywhere(
        Reduction,
        "(%x: TYPE) { %s = softmax %x axis=AXIS
         %h = slice %s axis=AXIS start=0 len=HALF
         %p = pad %h, 0 lo=NONE hi=PADREST
         %y = reduce.sum %p axes=[AXIS]
         return %y }",
    );
}

#[test]
fn halves_of_normed_rows_changed_over() {
    everywhere(
        Reduction,
        "(%q: TYPE, %k: TYPE) { %s = mul %q, %q
         %n = reduce.sum %s axes=[AXIS]
         %r = rsqrt %n
         %u = mul %q, %r
         %h = slice %u axis=AXIS start=HALF len=REST
         %m = neg %h
         %l = slice %u axis=AXIS start=0 len=HALF
         %c = concat %m, %l axis=AXIS
         %p = mul %c, %k
         %y = reduce.sum %p axes=[AXIS]
         return %y }",
    );
}

#[test]
fn a_slice_of_a_norm_is_assigned_to() {
    everywhere(
        Reduction,
        "(%x: TYPE) { %m = reduce.mean %x axes=[AXIS]
         %c = sub %x, %m
         %l = slice %x axis=AXIS start=0 len=HALF
         %h = slice %c axis=AXIS start=HALF len=REST
         %y = concat %l, %h axis=AXIS
         %s = softmax %y axis=AXIS
         return %s }",
    );
}

#[test]
fn three_deep() {
    everywhere(
        Reduction,
        "(%x: TYPE, %k: TYPE) { %a = softmax %x axis=AXIS
         %b = slice %a axis=AXIS start=HALF len=REST
         %c = pad %b, 1 lo=NONE hi=PADHALF
         %m = reduce.max %c axes=[AXIS]
         %d = sub %c, %m
         %e = flip %d axes=[AXIS]
         %f = slice %e axis=AXIS start=0 len=HALF
         %g = pad %f, 0 lo=PADREST hi=NONE
         %h = mul %g, %k
         %i = softmax %h axis=AXIS
         %y = reduce.mean %i axes=[AXIS]
         return %y }",
    );
}

/// Long rows, in loops, split rows and clusters.
#[test]
fn long_rows() {
    for (n, dtype) in [(70000, "f32"), (20001, "bf16")] {
        body(
            Reduction,
            "(%x: TYPE) { %a = softmax %x axis=AXIS
             %b = slice %a axis=AXIS start=0 len=HALF
             %c = pad %b, 0 lo=PADREST hi=NONE
             %y = reduce.max %c axes=[AXIS]
             return %y }",
            dtype,
            n,
            2,
        );
    }
}

#[test]
fn padded_scans() {
    everywhere(
        Scan,
        "(%x: TYPE) { %s = scan.sum %x axis=AXIS
         %t = slice %s axis=AXIS start=1 len=LESS
         %y = pad %t, 0 lo=ONE hi=NONE
         return %y }",
    );
}

/// A scan of a part of normed rows, padded, where the norm is over the same rows.
#[test]
fn scans_of_padded_rows() {
    everywhere(
        Scan,
        "(%x: TYPE) { %m = reduce.max %x axes=[AXIS]
         %d = sub %x, %m
         %h = slice %d axis=AXIS start=0 len=HALF
         %p = pad %h, 0 lo=NONE hi=PADREST
         %y = scan.sum %p axis=AXIS
         return %y }",
    );
}

/// Whole rows that are padding: guards on rows, which do not concern their elements, are kept.
#[test]
fn pads_of_rows() {
    for (rows, n) in [(6, 8), (5, 77), (3, 1000)] {
        let all = rows + 3;
        let flat = rows * n;
        check(
            Reduction,
            &format!(
                "graph k(%x: f32[{rows},{n}]) {{ %a = softmax %x axis=1
                 %p = pad %a, 2 lo=[1,0] hi=[2,0]
                 %y = reduce.sum %p axes=[1]
                 return %y }}"
            ),
        );
        // Padded as one axis, so that one guard concerns row and element at once.
        check(
            Reduction,
            &format!(
                "graph k(%x: f32[{rows},{n}]) {{ %a = softmax %x axis=1
                 %f = reshape %a shape=[{flat}]
                 %p = pad %f, 2 lo=[0] hi=[{}]
                 %r = reshape %p shape=[{all},{n}]
                 %y = reduce.sum %r axes=[1]
                 return %y }}",
                3 * n
            ),
        );
    }
}

/// No row program computes nested reductions of which the inner row's index depends on the outer row.
#[test]
fn rows_of_columns_are_refused() {
    let g: Graph =
        "graph k(%x: f32[8,8]) { %a = softmax %x axis=0\n %b = softmax %a axis=1\n return %b }".parse().unwrap();
    for target in TARGETS {
        match lower(&kernel(Reduction, g.clone()), target) {
            Err(LowerError::Unsupported { .. }) => {}
            other => panic!("{target:?}: {other:?}"),
        }
        let inputs = kiln_graphgen::inputs(&g, 1);
        assert!(compare(Reduction, &g, &inputs, target).unwrap().is_err());
    }
}
