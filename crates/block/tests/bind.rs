//! Programs bound to a launch: numbers and grid become constants, and what does not fit is said.
use kiln_block::bind::{BoundArgument, BoundTensor, BoundValue, TensorAccess, bind, bind_text};
use kiln_block::{BlockProgram, Const, Elem, text, verify};

const PROGRAM: &str = "kernel @scale(%x: ptr<f32>, %out: ptr<f32>, %n: i32, %by: f32, %on: bool) grid launch warps 1 {
  %i = iota : i32[4]
  %all = splat %n : i32[4]
  %inside = cmp lt %i, %all : bool[4]
  %bys = splat %by : f32[4]
  %from = splat %x : ptr<f32>[4]
  %from_i = ptr_add %from, %i : ptr<f32>[4]
  %v = load %from_i, %inside : f32[4]
  %y = mul %v, %bys : f32[4]
  %to = splat %out : ptr<f32>[4]
  %to_i = ptr_add %to, %i : ptr<f32>[4]
  store %to_i, %y, %inside
}
";

fn tensor(parameter: &str, elem: Elem, access: TensorAccess) -> BoundArgument<'_> {
    let value = BoundTensor { kind: elem.kind(), elements: 4, access, is_alone: true };
    BoundArgument { parameter, value: BoundValue::Tensor(value) }
}
fn number(parameter: &str, n: Const) -> BoundArgument<'_> {
    BoundArgument { parameter, value: BoundValue::Number(n) }
}
fn arguments() -> Vec<BoundArgument<'static>> {
    vec![
        number("by", Const::Int(2)),
        tensor("out", Elem::F32, TensorAccess::New),
        number("n", Const::Int(3)),
        tensor("x", Elem::F32, TensorAccess::Read),
        number("on", Const::Int(1)),
    ]
}
fn program() -> BlockProgram {
    text::parse(PROGRAM).expect("a program")
}

#[test]
fn numbers_and_grid_become_constants() {
    let bound = bind(&program(), &[2], &arguments()).expect("fits");
    let printed = text::print(&bound.program);
    assert_eq!(bound.arguments, [3, 1], "the parameters are x and out");
    assert!(printed.starts_with(
        "kernel @scale(%x: ptr<f32> readonly align 16 {span32, noalias}, \
         %out: ptr<f32> align 16 {span32, noalias}) grid [2, 1, 1] warps 1 {"
    ));
    for constant in ["const 3 : i32", "const 2.0 : f32", "const true : bool"] {
        assert!(printed.contains(constant), "{printed}");
    }
    verify::verify(&bound.program).expect("verified");
    assert_eq!(text::parse(&printed).expect("a program"), bound.program);
}

#[test]
fn what_does_not_fit_is_said() {
    let with = |n: usize, changed: BoundArgument<'static>| {
        let mut all = arguments();
        all[n] = changed;
        all
    };
    let without = |n: usize| {
        let mut all = arguments();
        all.remove(n);
        all
    };
    let added = |more: BoundArgument<'static>| [arguments(), vec![more]].concat();
    let table = [
        (
            vec![2],
            added(number("m", Const::Int(0))),
            "no parameter `m`; its parameters are `x`, `out`, `n`, `by`, `on`",
        ),
        (vec![2], without(3), "`x` is not given; give a tensor, as `x=%x` to read or `x=new f32[8]` to write"),
        (vec![2], without(2), "`n` is not given; give a number, as `n=1`"),
        (vec![2], with(3, tensor("x", Elem::F16, TensorAccess::Read)), "points to f32, and a tensor of f16 is given"),
        (vec![2], with(3, tensor("x", Elem::F32, TensorAccess::New)), "it never writes `x`"),
        (vec![2], with(1, tensor("out", Elem::F32, TensorAccess::Read)), "it writes `out`, which is given as a tensor"),
        (vec![2], with(3, number("x", Const::Int(1))), "`x` is a pointer, and a number is given"),
        (vec![2], with(2, tensor("n", Elem::I32, TensorAccess::Read)), "`n` is a number of i32, and a tensor is given"),
        (vec![2], with(2, number("n", Const::Int(1 << 31))), "give one from -2147483648 to 2147483647"),
        (vec![2], with(2, number("n", Const::Float(0.5))), "`n` is i32, and 0.5 is given; give an integer"),
        (vec![2], with(4, number("on", Const::Int(2))), "`on` is bool, and 2 is given; give true or false"),
        (vec![], arguments(), "its grid is of the launch, which gives none; give one, as grid=[8]"),
        (vec![1; 4], arguments(), "a grid of 4 axes is given"),
        (vec![1 << 31], arguments(), "is too large"),
    ];
    for (grid, arguments, wanted) in table {
        let found = bind(&program(), &grid, &arguments).expect_err(wanted);
        assert!(found.contains(wanted), "{found}\nnot: {wanted}");
    }
    let constant = text::parse(&PROGRAM.replace("grid launch", "grid [4, 1, 1]")).expect("a program");
    assert!(bind(&constant, &[], &arguments()).is_ok());
    let other = bind(&constant, &[2], &arguments()).expect_err("another grid");
    assert!(other.contains("leave the grid of the launch out"), "{other}");
    let unnamed = bind_text("other", PROGRAM, &[2], &arguments()).expect_err("another name");
    assert!(unnamed.contains("the text is that of `scale`"), "{unnamed}");
}

#[test]
fn updates_need_what_was_there_before() {
    let source = "kernel @count(%to: ptr<i32>) grid launch warps 1 {
  %one = const 1 : i32
  atomic_add %to, %one
}
";
    let with = |access| bind_text("count", source, &[8], &[tensor("to", Elem::I32, access)]);
    assert!(with(TensorAccess::Updated).is_ok(), "{:?}", with(TensorAccess::Updated));
    let new = with(TensorAccess::New).expect_err("new memory");
    assert!(new.contains("give a copy of what it starts from"), "{new}");
}
