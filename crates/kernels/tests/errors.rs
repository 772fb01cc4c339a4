//! How errors read.
use crate::harness::{pointer, refused, scalar};
use kiln_kernels::Number;

#[test]
fn an_error_shows_the_line_and_the_calls() {
    let kernel = "
def inner(x):
    y = x.to(tl.float16)
    return tl.exp(y)

def outer(x_ptr, n):
    x = tl.load(x_ptr + tl.arange(0, 8))
    tl.store(x_ptr + tl.arange(0, 8), inner(x))
";
    let error = refused(kernel, vec![pointer(Number::Float32), scalar(Number::Int32)]);
    let expected = "\
type error: exp takes float32 or float64; this is float16[8]
 --> kernels.py:4:12
  |
4 |     return tl.exp(y)
  |            ^^^^^^^^^
called in outer
 --> kernels.py:8:39
  |
8 |     tl.store(x_ptr + tl.arange(0, 8), inner(x))
  |                                       ^^^^^^^^
help: cast it with `.to(tl.float32)`";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_near_name_is_proposed() {
    let error = refused("\ndef kernel(n):\n    tl.laod(n)\n", vec![scalar(Number::Int32)]);
    assert_eq!(error.hint.as_deref(), Some("did you mean `load`?"));
}

#[test]
fn a_syntax_error_has_its_place() {
    let error = refused("\ndef kernel(n):\n    x = = n\n", vec![scalar(Number::Int32)]);
    let place = error.place.clone().unwrap_or_default();
    assert_eq!((place.line, place.column), (3, 9), "{error}");
}
