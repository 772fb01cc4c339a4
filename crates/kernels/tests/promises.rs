//! `multiple_of` and `assume`: what the program says of its parameters after them.
use crate::harness::{compiled, int, pointer, scalar};
use kiln_block::text::print;
use kiln_kernels::Number;

/// The program of a kernel whose parameters are a pointer and two int32.
fn program(body: &str) -> String {
    let text = format!("\ndef kernel(p, n, m):\n    {body}\n    tl.store(p + n, m)\n");
    let arguments = vec![pointer(Number::Int32), scalar(Number::Int32), scalar(Number::Int32)];
    print(&compiled(&text, arguments).unwrap_or_else(|e| panic!("{body}\n{e}")).program)
}

#[test]
fn promises_are_facts_about_parameters() {
    for (body, says) in [
        ("n = tl.multiple_of(n, 16)", "%n: i32 align 1 {div 16}"),
        ("n = tl.multiple_of(tl.multiple_of(n, 6), [4])", "%n: i32 align 1 {div 12}"),
        ("tl.assume(n % 8 == 0)", "%n: i32 align 1 {div 8}"),
        ("tl.assume(n > 0)", "%n: i32 align 1 {least 1}"),
        ("tl.assume(100 > n)", "%n: i32 align 1 {most 99}"),
        ("tl.assume((n >= 2) & (n <= 9))", "%n: i32 align 1 {least 2, most 9}"),
        ("tl.assume(n >= -1); tl.assume(n >= 3); tl.assume(n >= 2)", "%n: i32 align 1 {least 3}"),
        ("tl.assume(n == 7)", "%n: i32 align 1 {least 7, most 7}"),
        // Not what says nothing of a parameter, contradicts another promise, or holds on one side only.
        ("tl.assume(n < m)", "%n: i32 align 1, %m: i32"),
        ("tl.assume(n > 3); tl.assume(n < 2)", "%n: i32 align 1 {least 4}"),
        ("if m > 3:\n        tl.assume(n % 8 == 0)", "%n: i32 align 1, %m"),
        ("n = tl.multiple_of(n, 0)", "%n: i32 align 1, %m"),
    ] {
        let text = program(body);
        assert!(text.contains(says), "{body}\n{text}");
    }
}

/// What is no parameter, or stands in a loop, is known to be a multiple from there on.
#[test]
fn values_become_multiples_where_that_is_said() {
    for body in [
        "n = tl.multiple_of(tl.load(p), 32)",
        "n = tl.multiple_of(n + m, 32)",
        "for i in range(m):\n        tl.store(p, tl.multiple_of(n, 32))",
        "q = p + n\n    tl.multiple_of(q, 32)\n    tl.store(q, 1)",
        "p = tl.multiple_of(p, 32)",
        "q = p + tl.arange(0, 8)\n    q = tl.multiple_of(q, [32])\n    tl.store(q, 1)",
    ] {
        let text = program(body);
        assert!(text.contains("multiple_of v") || text.contains("multiple_of %"), "{body}\n{text}");
        assert!(text.contains(" [32]"), "{body}\n{text}");
    }
    assert!(!program("q = p + tl.multiple_of(tl.arange(0, 8), 8)\n    tl.store(q, 1)").contains("multiple_of"));
    let text = program("q = p + n\n    tl.multiple_of(q, 32)\n    tl.store(q, 1)");
    let known = text.lines().find(|line| line.contains("multiple_of")).and_then(|line| line.trim().split(' ').next());
    let store = text.lines().find(|line| line.contains("store ")).unwrap_or_default();
    assert!(known.is_some_and(|v| store.contains(v)), "{text}");
}

#[test]
fn known_values_stay() {
    let text = "\ndef kernel(p, n):\n    tl.store(p, tl.multiple_of(n, 4))\n";
    compiled(text, vec![pointer(Number::Int32), int(5)]).unwrap_or_else(|e| panic!("{e}"));
}
