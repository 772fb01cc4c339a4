//! Arguments that are arrays: sizes and strides are known, and indices stay inside.
use crate::harness::{buffer, compiled, executed, pointer, refused, zeros};
use kiln_block::Elem;
use kiln_interp::block::Buffer;
use kiln_kernels::{Argument, ArrayArgument, Number};

fn array(rank: usize) -> Argument {
    Argument::Array(ArrayArgument {
        elem: Number::Int32,
        rank,
        size_type: Number::Int32,
        facts: Default::default(),
        shape: vec![],
        strides: vec![],
    })
}

/// 0, 1, … in 3 rows of 5, of which the memory has 6.
fn buffers() -> Vec<Buffer> {
    let size = |n: f64| buffer(Elem::I32, [n]);
    let stride = |n: f64| buffer(Elem::I64, [n]);
    vec![
        buffer(Elem::I32, (0..18).map(f64::from)),
        size(3.0),
        size(5.0),
        stride(6.0),
        stride(1.0),
        zeros(Elem::I32, 16),
    ]
}

struct Row {
    rule: &'static str,
    /// Lines of a kernel of `x`, the array, `out`, int32 numbers that begin as 0, and `B`, the constexpr 4. `n` is 1, known
    /// only at run time.
    body: &'static str,
    /// The first elements of `out`.
    out: &'static [i32],
    /// The first elements of `x`, in memory, afterwards.
    x: &'static [i32],
}

const fn row(rule: &'static str, body: &'static str, out: &'static [i32], x: &'static [i32]) -> Row {
    Row { rule, body, out, x }
}

const ROWS: &[Row] = &[
    row("sizes and strides", "tl.store(out, x.shape[0] * 100 + x.shape[1] * 10 + x.stride(0))", &[356], &[]),
    row(
        "its type",
        "tl.static_assert(isinstance(x, tl.Array) and x.dtype == tl.int32)\n    \
         tl.store(out, len(x.shape))",
        &[2],
        &[],
    ),
    row("an element", "tl.store(out, x[n, 2])", &[8], &[]),
    row("an element from the end", "tl.store(out, x[-1, -2])", &[15], &[]),
    row("outside is 0", "tl.store(out, x[n + 2, 0] + x[0, 5] + x[n - 2, 0] + 1)", &[1], &[]),
    row("a part of a row", "tl.store(out + j, x[n, n:n + B])", &[7, 8, 9, 10], &[]),
    row("a part over the end", "tl.store(out + j, x[2, 3:7])", &[15, 16, 0, 0], &[]),
    row("blocks by their number", "tl.store(out + j, x[0, n * B:(n + 1) * B])", &[4, 0, 0, 0], &[]),
    row("a start at int64", "s = n.to(tl.int64)\n    tl.store(out + j, x[0, s * 2:2 * s + B])", &[2, 3, 4, 0], &[]),
    row(
        "a part of both axes",
        "v = x[n:n + 2, 0:3]\n    tl.store(out + tl.arange(0, 6), v.reshape(6))",
        &[6, 7, 8, 12, 13, 14, 0],
        &[],
    ),
    row(
        "rows by a block",
        "v = x[2 - tl.arange(0, 2) * 2, 0:3]\n    tl.store(out + tl.arange(0, 6), v.reshape(6))",
        &[12, 13, 14, 0, 1, 2, 0],
        &[],
    ),
    row("stores", "x[n, 3:7] = j + 100", &[], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 100, 101, 11, 12]),
    row("stores a number", "x[0:B, 1] = 9\n    x[0, 0] = 8", &[], &[8, 9, 2, 3, 4, 5, 6, 9]),
    row("a column", "x[0:B, 1] += j * 10", &[], &[0, 1, 2, 3, 4, 5, 6, 17, 8, 9, 10, 11, 12, 33, 14]),
    row("in a loop", "for k in range(x.shape[0]):\n        x[k, 0] = k + 50", &[], &[50, 1, 2, 3, 4, 5, 51]),
    row("is given to a helper", "tl.store(out, second(x))", &[7], &[]),
];

fn kernel(body: &str) -> String {
    format!(
        "
def second(a):
    return a[1, 1]

def kernel(x: tl.Array, out, B: tl.constexpr):
    n = tl.num_programs(0)
    j = tl.arange(0, 4)
    {body}
"
    )
}

fn arguments() -> Vec<Argument> {
    vec![array(2), pointer(Number::Int32), crate::harness::int(4)]
}

#[test]
fn arrays_are_indexed() {
    let mut wrong = vec![];
    for Row { rule, body, out, x } in ROWS {
        let kernel = kernel(body);
        if let Err(error) = compiled(&kernel, arguments()) {
            wrong.push(format!("{rule}: {error}"));
            continue;
        }
        let after = executed(&kernel, arguments(), [1, 1, 1], buffers());
        for (got, want) in [(&after[5], out), (&after[0], x)] {
            let want: Vec<f64> = want.iter().map(|n| f64::from(*n)).collect();
            if got.to_f64()[..want.len()] != want {
                wrong.push(format!("{rule}: {:?}, not {want:?}:{kernel}", got.to_f64()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn parameters_of_arrays_have_their_places() {
    let compiled = compiled(&kernel("x[0, 0] = 1"), arguments()).map(|compiled| compiled.parameters);
    let want = [vec![0, 0], vec![0, 1, 0], vec![0, 1, 1], vec![0, 2, 0], vec![0, 2, 1], vec![1]];
    assert_eq!(compiled.as_deref(), Ok(&want[..]));
}

#[test]
fn wrong_indices_of_arrays_are_refused() {
    for (body, part) in [
        ("v = x[0]", "an array of 2 axes is indexed by 1 values"),
        ("v = x[0, :]", "has no size that is known at compile time"),
        ("v = x[0, 0:n]", "known only at run time"),
        ("v = x[0, 3:3]", "has 0 elements"),
        ("v = x[0, 1.5]", "a position is float32"),
        ("x[0, 0:B] = tl.arange(0, 8)", "do not broadcast"),
        ("v = x + 1", "an array of 2 axes is no operand"),
    ] {
        let error = refused(&kernel(body), arguments());
        assert!(error.message.contains(part), "{body}: {error}");
        assert!(error.place.is_some() && error.hint.is_some(), "{body}: {error}");
    }
}
