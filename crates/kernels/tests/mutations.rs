//! Damaged sources: whatever the text is, there is a program or an error with a kind, never a defect.
use crate::harness::{int, pointer, scalar, unit};
use kiln_kernels::{ErrorKind, Number, Options, Signature, compile, free_names};

const SOURCE: &str = "
def helper(x, y=2, *rest):
    '''Text with \\\\n and {braces}.'''
    if x > 0 and y is not None:
        return x * 2, len(f'{y}{x.dtype!r}')
    return x - 1, len(\"other\")

def kernel(out, x, n, C: tl.constexpr):
    i = tl.arange(0, 8)[None, :] + 0
    acc = tl.zeros([1, 8], dtype=tl.float32)
    for k in range(0, n, C):
        v = tl.load(x + i + k, mask=i < n - k, other=0.0)
        acc += tl.where(v > 1e-3, v, -v) ** 1 if C == 4 else v
        while n < 0x10:
            n += 1
    a, b = helper(n, *(1, 2))
    values = [e + 1 for e in (1, 2, 3) if e != 2]
    tl.static_assert(len(values) == 2 and not b in ('x', 'y'), 'no')
    if (m := a // 2) >= 3:
        tl.store(out + i, acc + values[-1])
        return
    tl.store(out + i, tl.sum(acc, axis=1, keep_dims=True) + m)
";

/// Pieces that are put into the text.
const PIECES: [&str; 24] = [
    "(",
    ")",
    "[",
    "]",
    ":",
    ",",
    "\n",
    "    ",
    "'",
    "\"\"\"",
    "\\",
    "{",
    "}",
    "*",
    "**",
    "lambda x: x",
    "0x",
    "1e",
    "é",
    "#",
    " if ",
    " for ",
    "tl.",
    "None",
];

#[test]
fn damaged_sources_are_refused_or_compile() {
    let arguments = vec![pointer(Number::Float32), pointer(Number::Float32), scalar(Number::Int32), int(3)];
    let signature = Signature { arguments };
    let whole = compile(&unit(SOURCE, &[]), &signature, &Options::default());
    assert!(whole.is_ok(), "{}", whole.err().map(|error| error.to_string()).unwrap_or_default());
    let mut state = 1u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % limit
    };
    let places: Vec<usize> = SOURCE.char_indices().map(|(at, _)| at).collect();
    for seed in 0..4000 {
        let mut text = SOURCE.to_string();
        let mut at = places[below(places.len())];
        for _ in 0..=below(3) {
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            match below(3) {
                0 => text.insert_str(at, PIECES[below(PIECES.len())]),
                1 => text.truncate(at),
                _ => {
                    let end = (at + 1 + below(6)).min(text.len());
                    if text.is_char_boundary(end) {
                        text.replace_range(at..end, "");
                    }
                }
            }
            at = at.min(text.len());
        }
        let _ = free_names(&text);
        if let Err(error) = compile(&unit(&text, &[]), &signature, &Options::default()) {
            assert_ne!(error.kind, ErrorKind::Internal, "seed {seed}: {error}\n{text}");
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn deep_sources_are_refused() {
    let arguments = || Signature { arguments: vec![scalar(Number::Int32)] };
    let deep = [
        format!("\ndef kernel(n):\n    x = {}n{}\n", "(".repeat(3000), ")".repeat(3000)),
        format!("\ndef kernel(n):\n    x = {}n\n", "not ".repeat(3000)),
        format!("\ndef kernel(n):\n    x = {}n\n", "-".repeat(3000)),
        "\ndef kernel(n):\n    kernel(n)\n".to_string(),
    ];
    for source in deep {
        let error = compile(&unit(&source, &[]), &arguments(), &Options::default()).err();
        let kind = error.map(|error| error.kind);
        assert!(matches!(kind, Some(ErrorKind::Syntax | ErrorKind::Unsupported)), "{kind:?}: {source:.60}");
    }
    let endless = "
def kernel(n):
    for a in tl.static_range(10000):
        for b in tl.static_range(10000):
            for c in tl.static_range(10000):
                STATEMENT
";
    for statement in ["pass", "n += 1"] {
        let source = endless.replace("STATEMENT", statement);
        let error = compile(&unit(&source, &[]), &arguments(), &Options::default()).err();
        assert_eq!(error.map(|error| error.kind), Some(ErrorKind::Unsupported), "{statement}");
    }
    let long = format!("\ndef kernel(n):\n    x = n{}\n", " + n".repeat(1000));
    assert!(compile(&unit(&long, &[]), &arguments(), &Options::default()).is_ok());
}
