//! Pointers that are only read through, and the words of the errors, which ports' tests look for.
use crate::harness::{compiled, int, pointer, refused, scalar};
use kiln_kernels::{Argument, ErrorKind, Number};

#[test]
fn const_pointers_are_only_read_through() {
    let kernel = |body: &str| format!("\ndef kernel(p: tl.const, q, choose):\n    {body}\n");
    let arguments = |choose: Argument| vec![pointer(Number::Float32), pointer(Number::Float32), choose];
    compiled(&kernel("tl.store(q, tl.load(p + 1))"), arguments(int(1))).unwrap_or_else(|e| panic!("{e}"));
    for (body, choose, says) in [
        ("tl.store(p + 1, 0.0)", int(1), "Cannot store to a constant pointer"),
        ("tl.atomic_add(p, 1.0)", int(1), "Cannot store to a constant pointer"),
        ("tl.store(p if choose else q, 0.0)", int(1), "Cannot store to a constant pointer"),
        ("tl.store(p if choose else q, 0.0)", scalar(Number::Int32), "Ternary expression with dynamic condition has"),
        (
            "if choose > 0:\n        r = p\n    else:\n        r = q\n    tl.store(r, 0.0)",
            scalar(Number::Int32),
            "Mismatched type for r",
        ),
    ] {
        let error = refused(&kernel(body), arguments(choose));
        assert!(error.to_string().contains(says), "{body}\n{error}");
    }
    let called = "\ndef choice(a, b, c):\n    if c > 0:\n        return a\n    else:\n        return b\n\n\
                  def kernel(p: tl.const, q, choose):\n    tl.store(choice(p, q, choose), 0.0)\n";
    let error = refused(called, arguments(scalar(Number::Int32)));
    assert_eq!(error.kind, ErrorKind::Type);
    assert!(error.to_string().contains("Return type mismatch: "), "{error}");
}
