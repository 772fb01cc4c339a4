//! Launches of block programs: the text form, JSON, and what is refused.
use kiln_graph::{Graph, Op, text};

const PROGRAM: &str = "kernel @scale(%x: ptr<f32>, %out: ptr<f32>, %n: i32 {div 4}) grid launch warps 4 {
    # A comment with a brace: }
    %i = iota : i32[4]

    if %c {
      %from = splat %x : ptr<f32>[4]
    }
  }";

fn graph(program: &str, lines: &str) -> String {
    format!("graph g(%x: f32[8], %s: f32[8]) {{\n  {program}\n{lines}\n  return %y\n}}\n")
}

#[test]
fn launches_survive_text_and_json() {
    let source = graph(PROGRAM, "  %y = launch scale(x=%x, out=new f32[8], n=8) grid=[2,1]");
    let g: Graph = source.parse().expect("a graph");
    let Op::Launch(launch) = g.op(g.outputs[0]) else { panic!("no launch:\n{g}") };
    assert_eq!(launch.program.name, "scale");
    assert!(launch.program.text.starts_with("kernel @scale(") && launch.program.text.ends_with("\n}"));
    assert_eq!(launch.grid, [2, 1]);
    let printed = g.to_string();
    assert!(printed.contains("%2 = launch scale(x=%0, out=new f32[8], n=8) grid=[2, 1] : f32[8]"), "{printed}");
    assert!(printed.contains("\n    if %c {\n"), "indented as in the text:\n{printed}");
    assert_eq!(printed.parse::<Graph>().as_ref(), Ok(&g), "{printed}");
    assert_eq!(Graph::from_json(&g.to_json().expect("JSON")), Ok(g));
}

#[test]
fn a_copy_and_several_results() {
    let lines = "  %a = launch scale(x=copy %x, out=new i64[3], n=-0.5, f=true)
  %y = result %a index=1";
    let g: Graph = graph(PROGRAM, lines).parse().expect("a graph");
    assert_eq!(g.ty(g.outputs[0]).to_string(), "i64[3]");
    let printed = g.to_string();
    assert!(printed.contains("launch scale(x=copy %0, out=new i64[3], n=-0.5, f=true) : f32[8]"), "{printed}");
    assert_eq!(printed.parse::<Graph>().as_ref(), Ok(&g));
}

#[test]
fn a_program_may_lie_in_a_file() {
    let source = graph("kernel @scale from \"scale.txt\"", "  %y = launch scale(x=%x, out=new f32[8], n=8) grid=[2]");
    let read = |text: &str| {
        let text = text.to_string();
        text::parse_with(&source, &mut move |name| {
            assert_eq!(name, "scale.txt");
            Ok(text.clone())
        })
    };
    let g = read(&format!("# The program.\n{PROGRAM}\n")).expect("a graph");
    assert_eq!(g.to_string().parse::<Graph>().as_ref(), Ok(&g), "its text holds the program");
    let other = read(&PROGRAM.replace("@scale", "@other")).expect_err("another name").to_string();
    assert!(other.contains("write `kernel @other from"), "{other}");
    let none = read("graph g() {}").expect_err("no program").to_string();
    assert!(none.contains("holds no block program"), "{none}");
    let here = text::parse(&source).expect_err("no files").to_string();
    assert!(here.contains("line 2, column 3") && here.contains("is not read here"), "{here}");
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let launch = |arguments: &str| graph(PROGRAM, &format!("  %y = launch {arguments}"));
    let table = [
        (launch("other(x=%x)"), "line 10, column 15: there is no program `other` above"),
        (launch("scale(x=%x) grid=[1]"), "`scale` has no result; give the tensors that it writes as `new f32[8]`"),
        (launch("scale(x=%x, x=new f32[8])"), "`x` of `scale` is given twice; remove one"),
        (launch("scale(x=%x, out=new f32[8]) grid=[1,1,1,1]"), "has 4 axes; give one to three sizes"),
        (launch("scale(x=%x, out=new f32[8]) grid=[-1]"), "one attribute, as grid=[8]"),
        (launch("scale(x=%x, out=new f32[8]) axis=1"), "one attribute, as grid=[8]"),
        (launch("scale(x=x)"), "expected what a parameter is given"),
        (launch("scale(x=%z, out=new f32[8])"), "`%z` is not defined above"),
        (launch("scale(x=%x, out=new f32[99999999999,9999999999])"), "too large"),
        (graph(PROGRAM, "  %y = neg %x"), "`kernel @scale` is never launched; remove it, or launch it"),
        (graph(&format!("{PROGRAM}\n{PROGRAM}"), ""), "`kernel @scale` is declared twice; rename one"),
        (graph("kernel @scale(%x: ptr<f32>) { {", ""), "this kernel has no closing brace"),
        (
            graph(PROGRAM, "  %a = launch scale(x=%x, out=new f32[8])\n  %y = result %a index=1"),
            "(scale) has 1 result, there is no result 1",
        ),
    ];
    for (source, wanted) in table {
        let found = source.parse::<Graph>().expect_err(wanted).to_string();
        assert!(found.contains(wanted), "{found}\nnot {wanted}\n{source}");
    }
}

#[test]
fn one_name_is_one_program() {
    let g: Graph = graph(PROGRAM, "  %y = launch scale(x=%x, out=new f32[8], n=8)").parse().expect("a graph");
    let Op::Launch(launch) = g.op(g.outputs[0]) else { panic!("no launch") };
    let mut changed = launch.clone();
    changed.program.text.push(' ');
    let mut two = g.clone();
    let x = two.inputs[0];
    two.add(Op::Launch(changed), &[x]).expect("a node");
    let e = two.verify().expect_err("two texts").to_string();
    assert!(e.contains("two programs `scale`"), "{e}");
}
