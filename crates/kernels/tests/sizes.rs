//! Blocks whose sizes are no powers of two: elements behind them never count.
use crate::harness::{buffer, compiled, executed, pointer, refused, zeros};
use kiln_block::Elem;
use kiln_kernels::{ErrorKind, Number};

struct Row {
    rule: &'static str,
    /// Lines of a kernel of `out`, int32 numbers that begin as 0, and `x`, those from 0 on with 1000 from 24 on. `i` is
    /// `arange(0, 24)`, `a` what is loaded from `x + i`, and `b` the same as 4 rows of 6.
    body: &'static str,
    /// The first elements of `out`.
    out: &'static [i32],
}

const fn row(rule: &'static str, body: &'static str, out: &'static [i32]) -> Row {
    Row { rule, body, out }
}

const ROWS: &[Row] = &[
    row("stores leave what is behind", "tl.store(out + tl.arange(0, 3), 7)", &[7, 7, 7, 0, 0]),
    row("a mask is kept", "tl.store(out + tl.arange(0, 3), 7, mask=tl.arange(0, 3) != 1)", &[7, 0, 7, 0]),
    row("atomics leave what is behind", "tl.atomic_add(out + tl.arange(0, 3), 7)", &[7, 7, 7, 0]),
    row("sum", "tl.store(out, tl.sum(a, 0))", &[276]),
    row("product", "tl.store(out, tl.reduce(a[None, :] * 0 + 2, 1, product).sum())", &[16777216]),
    row("largest", "tl.store(out, tl.max(a - 100, 0))", &[-77]),
    row("least", "tl.store(out, tl.min(a + 100, 0))", &[100]),
    row("argmax", "tl.store(out, tl.argmax(a * 0 - 1, 0) * 100 + tl.argmax(a, 0))", &[23]),
    row("argmax of all axes", "v, at = tl.max(b, None, return_indices=True)\n    tl.store(out, v * 100 + at)", &[2323]),
    row("xor", "tl.store(out, tl.xor_sum(a, 0))", &[0]),
    row("a function that is not an op", "tl.store(out, tl.reduce(a, 0, left))", &[0]),
    row("rows", "tl.store(out + tl.arange(0, 4), tl.sum(b, 1))", &[15, 51, 87, 123, 0]),
    row("columns", "tl.store(out + tl.arange(0, 6), tl.sum(b, 0))", &[36, 40, 44, 48, 52, 56, 0]),
    row("all axes", "tl.store(out, tl.sum(b))\n    tl.store(out + 1, tl.sum(b, None, True).shape[1])", &[276, 1]),
    row("scan", "tl.store(out + i, tl.cumsum(a, 0))", &[0, 1, 3, 6, 10]),
    row("scan from the last on", "tl.store(out + i, tl.cumsum(a, 0, reverse=True))", &[276, 276, 275, 273]),
    row(
        "a scan from the last on by a function",
        "tl.store(out + i, tl.associative_scan(a, 0, left, reverse=True))",
        &[23, 23, 23, 23],
    ),
    row("flip", "tl.store(out + i, tl.flip(a))", &[23, 22, 21]),
    row("gather", "tl.store(out + tl.arange(0, 3), tl.gather(a, 20 + tl.arange(0, 3), 0))", &[20, 21, 22, 0]),
    row("permute", "tl.store(out + i, tl.trans(b).reshape(24))", &[0, 6, 12, 18, 1, 7]),
    row("reshape in place", "tl.store(out + tl.arange(0, 3), tl.sum(a.reshape(3, 8), 1))", &[28, 92, 156, 0]),
    row("reshape that moves", "tl.store(out + tl.arange(0, 8), tl.sum(a.reshape(8, 3), 1))", &[3, 12, 21, 30]),
    row("reshape of two axes", "tl.store(out + tl.arange(0, 6), tl.sum(b.reshape(6, 4), 1))", &[6, 22, 38, 54, 70, 86]),
    row("broadcast", "v = tl.arange(0, 3)[:, None] * 10 + tl.arange(0, 5)\n    tl.store(out, tl.sum(v))", &[180]),
    row("where", "tl.store(out + i, tl.where(i < 2, a, -1))", &[0, 1, -1]),
    row("full and zeros", "tl.store(out, tl.sum(tl.full([3, 5], 2, tl.int32)) + tl.zeros([3], tl.int32).sum())", &[30]),
    row(
        "join and split",
        "v = tl.join(a, a + 100)\n    p, q = tl.split(v)\n    tl.store(out + i, q - p + v.shape[0])",
        &[124, 124],
    ),
    row("cat", "v = tl.cat(a, a + 100, can_reorder=True)\n    tl.store(out + tl.arange(0, 48), v)", &[0, 1, 2]),
    row("cat, further on", "v = tl.cat(a, a + 100, can_reorder=True)\n    tl.store(out, tl.sum(v))", &[2952]),
    row(
        "cat of columns",
        "v = tl.cat(b, b, dim=1)\n    tl.store(out + tl.arange(0, 12), tl.sum(v, 0))",
        &[36, 40, 44, 48, 52, 56, 36],
    ),
    row("interleave", "v = tl.interleave(a, a + 100)\n    tl.store(out + tl.arange(0, 48), v)", &[0, 100, 1, 101]),
    row("sort", "tl.store(out + i, tl.sort((a * 5) % 24))", &[0, 1, 2, 3, 4, 5]),
    row("sort downwards", "tl.store(out + i, tl.sort(a - 100, descending=True))", &[-77, -78, -79]),
    row("sort of rows", "tl.store(out + i, tl.sort((b * 5) % 7).reshape(24))", &[0, 1, 3, 4, 5, 6, 0, 1, 2]),
    row("topk", "tl.store(out + tl.arange(0, 3), tl.topk((a * 5) % 24 - 50, 3))", &[-27, -28, -29, 0]),
    row("histogram", "tl.store(out + tl.arange(0, 3), tl.histogram(a % 3, 3))", &[8, 8, 8, 0]),
    row("sizes are the block's own", "tl.store(out, b.shape[1] * 100 + a.numel)", &[624]),
    row(
        "a loop",
        "v = tl.zeros([24], tl.int32)\n    for k in range(a.numel):\n        v += a\n    tl.store(out, tl.sum(v))",
        &[6624],
    ),
    row(
        "block pointers",
        "p = tl.make_block_ptr(x, (10,), (1,), (5,), (6,), (0,))\n    \
         tl.store(out + tl.arange(0, 6), tl.load(p, boundary_check=(0,)))",
        &[5, 6, 7, 8, 9, 0],
    ),
    row(
        "descriptors",
        "d = tl.make_tensor_descriptor(out, [3, 3], [3, 1], [2, 3])\n    \
         d.store([2, 1], tl.arange(0, 2)[:, None] * 10 + tl.arange(5, 8))",
        &[0, 0, 0, 0, 0, 0, 0, 5, 6, 0],
    ),
    row(
        "dots of 3 by 5 by 6",
        "
    l = (tl.arange(0, 3)[:, None] + tl.arange(0, 5)).to(tl.float32)
    r = (tl.arange(0, 5)[:, None] - tl.arange(0, 6)).to(tl.float32)
    p = tl.dot(l, r, input_precision='ieee').to(tl.int32)
    tl.store(out + tl.arange(0, 3)[:, None] * 6 + tl.arange(0, 6), p)",
        &[30, 20, 10, 0, -10, -20, 40, 25],
    ),
    row(
        "dots of one row",
        "
    l = tl.arange(0, 5)[None, :].to(tl.float32)
    r = (tl.arange(0, 5)[:, None] + tl.arange(0, 3)).to(tl.float32)
    tl.store(out + tl.arange(0, 3)[None, :], tl.dot(l, r).to(tl.int32))",
        &[30, 40, 50, 0],
    ),
    row(
        "dots of a batch of 3",
        "
    l = (tl.arange(0, 3)[:, None, None] + tl.zeros([3, 2, 3], tl.int32)).to(tl.float32)
    r = (tl.arange(0, 2)[None, None, :] + tl.zeros([3, 3, 2], tl.int32)).to(tl.float32)
    p = tl.dot(l, r).to(tl.int32)
    tl.store(out + tl.arange(0, 12), p.reshape(12))",
        &[0, 0, 0, 0, 0, 3, 0, 3, 0, 6, 0, 6],
    ),
];

fn kernel(body: &str) -> String {
    format!(
        "
def product(a, b):
    return a * b

def left(a, b):
    return a + b * 0

def kernel(out, x):
    i = tl.arange(0, 24)
    a = tl.load(x + i)
    b = tl.load(x + tl.arange(0, 4)[:, None] * 6 + tl.arange(0, 6))
    {body}
"
    )
}

#[test]
fn blocks_of_any_size() {
    let mut wrong = vec![];
    for Row { rule, body, out } in ROWS {
        let kernel = kernel(body);
        let arguments = vec![pointer(Number::Int32); 2];
        if let Err(error) = compiled(&kernel, arguments.clone()) {
            wrong.push(format!("{rule}: {error}"));
            continue;
        }
        let x = (0..64).map(|n| if n < 24 { f64::from(n) } else { 1000.0 });
        let got = executed(&kernel, arguments, [1, 1, 1], vec![zeros(Elem::I32, 64), buffer(Elem::I32, x)])[0].to_f64();
        let want: Vec<f64> = out.iter().map(|n| f64::from(*n)).collect();
        if got[..want.len()] != want {
            wrong.push(format!("{rule}: {got:?}, not {want:?}:{kernel}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_pads_cannot_do_is_refused() {
    for (body, part) in [
        ("v = tl.atomic_cas(x + i, 0, 1)", "is not compared and swapped"),
        ("v = tl.topk(a, 25)", "at most the elements of the last axis"),
        ("v = tl.bitonic_merge(a)", "24 is no power of two"),
        ("v = tl.zeros([24, 65536], tl.int32)", "more than 1048576 elements"),
        ("v = tl.zeros([0], tl.int32)", "an axis of 0 elements"),
    ] {
        let error = refused(&kernel(body), vec![pointer(Number::Int32); 2]);
        assert!(error.message.contains(part) && error.kind != ErrorKind::Internal, "{body}: {error}");
    }
}

#[test]
fn asserts_are_of_what_counts() {
    let text =
        "\ndef kernel(bound):\n    tl.device_assert(tl.arange(0, 24) < bound)\n    tl.device_assert(bound > 0)\n";
    let options = kiln_kernels::Options { debug: true, ..Default::default() };
    let signature = kiln_kernels::Signature { arguments: vec![crate::harness::scalar(Number::Int32)] };
    let compiled = kiln_kernels::compile(&crate::harness::unit(text, &[]), &signature, &options);
    let program = compiled.unwrap_or_else(|error| panic!("{error}")).program;
    let run = |bound: f64| {
        let mut buffers = vec![buffer(Elem::I32, [bound])];
        kiln_interp::block::run_grid(&program, [1, 1, 1], &mut buffers)
    };
    assert!(run(24.0).is_ok() && run(23.0).is_err());
}
