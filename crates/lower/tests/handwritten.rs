//! Launches with elementwise ops around them: the fused program gives the bits of the programs one after the other, for
//! drawn programs (by tiles, transposed, by rows, in a loop over tiles, products) and drawn neighbours.
use crate::common::{self, kernel, run_steps};
use kiln_block::{BlockProgram, Elem, text, write};
use kiln_graph::{Graph, Tensor, Type, ValueId};
use kiln_lower::{launch_access, lower};
use kiln_machine::Arch;
use kiln_plan::{Kernel, KernelKind, Rounding, Unfusable};

/// Numbers by a linear congruential generator.
struct Draws(u64);

impl Draws {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A program that reads `x` and writes `out`, of these sizes, with the grid of its launch.
struct Case {
    program: BlockProgram,
    /// Rows and columns of `x`, and of `out`.
    from: [usize; 2],
    to: [usize; 2],
    grid: usize,
}

/// `out = x + x`, by masked tiles; `swapped`: the transpose is stored.
fn tiles([rows, columns]: [usize; 2], [high, wide]: [usize; 2], swapped: bool) -> Case {
    let across = columns.div_ceil(wide);
    let program = write("tiles", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let id = k.program_id(0);
        let row = (id / across as i64 * high as i64 + k.arange(high)).expand(1);
        let column = (id % across as i64 * wide as i64 + k.arange(wide)).expand(0);
        let inside = row.lt(rows as i64) & column.lt(columns as i64);
        let v = (x + (row * columns as i64 + column)).masked(inside).load();
        let to = if swapped { column * rows as i64 + row } else { row * columns as i64 + column };
        (out + to).masked(inside).store(v + v);
    });
    let to = if swapped { [columns, rows] } else { [rows, columns] };
    let grid = across * rows.div_ceil(high);
    Case { program: program.expect("a program"), from: [rows, columns], to, grid }
}

/// Rows minus their largest element; what is not loaded is the lowest number.
fn rows([rows, columns]: [usize; 2]) -> Case {
    let program = write("rows", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let column = k.arange(columns.next_power_of_two());
        let inside = column.lt(columns as i64);
        let at = k.program_id(0) * columns as i64 + column;
        let v = (x + at).masked(inside).load_or(-1e30);
        (out + at).masked(inside).store(v - v.max(0));
    });
    Case { program: program.expect("a program"), from: [rows, columns], to: [rows, columns], grid: rows }
}

/// `out = x + x` as one axis, by few instances that each take several blocks.
fn looped([rows, columns]: [usize; 2], block: usize, instances: usize) -> Case {
    let elements = rows * columns;
    let program = write("looped", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let blocks = elements.div_ceil(block) as i64;
        let none = k.zeros(&[], Elem::F32);
        let [_] = k.for_range((k.program_id(0), blocks, instances as i64), [none], |n, [sum]| {
            let at = n * block as i64 + k.arange(block);
            let inside = at.lt(elements as i64);
            let v = (x + at).masked(inside).load();
            (out + at).masked(inside).store(v + v);
            [sum]
        });
    });
    Case { program: program.expect("a program"), from: [rows, columns], to: [rows, columns], grid: instances }
}

/// `out = x · xᵀ`, by tiles of 16.
fn product([rows, columns]: [usize; 2]) -> Case {
    const TILE: usize = 16;
    let across = rows.div_ceil(TILE);
    let program = write("product", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let id = k.program_id(0);
        let row = (id / across as i64 * TILE as i64 + k.arange(TILE)).expand(1);
        let column = (id % across as i64 * TILE as i64 + k.arange(TILE)).expand(0);
        let zero = k.zeros(&[TILE, TILE], Elem::F32);
        let [sums] = k.for_range((0, columns as i64, TILE as i64), [zero], |at, [sums]| {
            let (left, right) = ((at + k.arange(TILE)).expand(0), (at + k.arange(TILE)).expand(1));
            let a = (x + (row * columns as i64 + left)).masked(row.lt(rows as i64) & left.lt(columns as i64)).load();
            let b = (x + (column * columns as i64 + right))
                .masked(column.lt(rows as i64) & right.lt(columns as i64))
                .load();
            [k.dot(a, b, sums)]
        });
        (out + (row * rows as i64 + column)).masked(row.lt(rows as i64) & column.lt(rows as i64)).store(sums);
    });
    let grid = across * across;
    Case { program: program.expect("a program"), from: [rows, columns], to: [rows, rows], grid }
}

fn drawn(d: &mut Draws) -> Case {
    let sizes = [d.one(&[1, 3, 8, 12, 33]), d.one(&[1, 5, 16, 20, 31])];
    match d.below(5) {
        0 | 1 => tiles(sizes, [d.one(&[1, 4, 16]), d.one(&[2, 8, 32])], d.below(2) == 1),
        2 => rows(sizes),
        3 => looped(sizes, d.one(&[4, 32]), d.one(&[1, 3])),
        _ => product(sizes),
    }
}

/// Lines that compute `%name` from a value of these sizes, and its element type.
fn chain(d: &mut Draws, from: &str, name: &str, [rows, columns]: [usize; 2]) -> String {
    let (mut lines, mut now) = (String::new(), from.to_string());
    let steps = 1 + d.below(4);
    for n in 0..steps {
        let next = if n + 1 == steps { name.to_string() } else { format!("{name}_{n}") };
        let line = match d.below(9) {
            0 => format!("relu {now}"),
            1 => format!("neg {now}"),
            2 => format!("add {now}, {from}_same"),
            3 => format!("mul {now}, {from}_row"),
            4 => format!("sub {now}, {from}_column"),
            5 => format!("exp {now}"),
            6 => {
                lines += &format!("  {next}_h = cast {now} to=f16\n");
                format!("cast {next}_h to=f32")
            }
            7 => {
                let other =
                    if rows % 2 == 0 { format!("[2,{},{columns}]", rows / 2) } else { format!("[{rows},{columns},1]") };
                lines += &format!("  {next}_r = reshape {now} shape={other}\n  {next}_s = neg {next}_r\n");
                format!("reshape {next}_s shape=[{rows},{columns}]")
            }
            _ => format!("sigmoid {now}"),
        };
        lines += &format!("  {next} = {line}\n");
        now = next;
    }
    lines
}

/// Inputs of a chain: its own, one of its sizes, a row and a column.
fn inputs(name: &str, [rows, columns]: [usize; 2]) -> String {
    let shapes = [("", format!("{rows},{columns}")), ("_same", format!("{rows},{columns}"))];
    let broadcast = [("_row", format!("{columns}")), ("_column", format!("{rows},1"))];
    let all = shapes.iter().chain(&broadcast).map(|(suffix, shape)| format!("{name}{suffix}: f32[{shape}]"));
    all.collect::<Vec<_>>().join(", ")
}

fn graph(text: &str) -> Graph {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}
fn exact(kind: KernelKind, body: &Graph) -> Kernel {
    Kernel { rounding: Rounding::PerOp, ..kernel(kind, body.clone()) }
}
/// The outputs of a kernel on the processor, by the interpreter.
fn run(kind: KernelKind, body: &Graph, inputs: &[Tensor]) -> Vec<Tensor> {
    let steps = lower(&exact(kind, body), Arch::Cpu).unwrap_or_else(|e| panic!("{e}\n{body}"));
    run_steps(body, &steps, inputs).unwrap_or_else(|e| panic!("{e}\n{}", common::text(&steps)))
}

#[test]
fn fused_programs_give_the_bits_of_their_parts() {
    for seed in 0..120 {
        let d = &mut Draws(seed);
        for _ in 0..3 {
            d.below(2);
        }
        let case = drawn(d);
        let (before, after) = (d.below(3) > 0, d.below(4) > 0);
        let pre = if before { chain(d, "%x", "%a", case.from) } else { "  %a = add %x, %x_same\n".into() };
        let post = if after { chain(d, "%b", "%y", case.to) } else { "  %y = add %b, %b_same\n".into() };
        let [rows, columns] = case.to;
        let launch =
            format!("  %b = launch {}(x=%a, out=new f32[{rows},{columns}]) grid=[{}]\n", case.program.name, case.grid);
        let program = text::print(&case.program);
        let (x, b) = (inputs("%x", case.from), inputs("%b", case.to));
        let of_b = b.split_once(", ").expect("four inputs").1;
        let whole = graph(&format!("graph g({x}, {of_b}) {{\n{program}\n{pre}{launch}{post}  return %y\n}}"));
        let [m, n] = case.from;
        let parts = [
            graph(&format!("graph g({x}) {{\n{pre}  return %a\n}}")),
            graph(&format!("graph g(%a: f32[{m},{n}]) {{\n{program}\n{launch}  return %b\n}}")),
            graph(&format!("graph g({b}) {{\n{post}  return %y\n}}")),
        ];
        let tensors = kiln_graphgen::inputs(&whole, seed);
        let (of_x, rest) = tensors.split_at(4);
        let a = run(KernelKind::Pointwise, &parts[0], of_x);
        let b = run(KernelKind::Launch, &parts[1], &a);
        let all: Vec<Tensor> = b.into_iter().chain(rest.iter().cloned()).collect();
        let want = run(KernelKind::Pointwise, &parts[2], &all);
        let got = run(KernelKind::Launch, &whole, &tensors);
        assert_eq!(got, want, "seed {seed}\n{whole}");
        let steps = lower(&exact(KernelKind::Launch, &whole), Arch::Cpu).expect("lowered");
        assert_eq!((steps.steps.len(), steps.scratch.len()), (1, 0), "seed {seed}: one program, nothing in between");
    }
}

/// What is known of the only operand and the only result of a program.
fn accesses(program: Result<BlockProgram, impl std::fmt::Debug>, grid: usize) -> [Result<(), Unfusable>; 2] {
    let program = program.expect("a program");
    let text = format!(
        "graph g(%x: f32[8]) {{\n{}\n  %b = launch {}(x=%x, out=new f32[8]) grid=[{grid}]\n  return %b\n}}",
        text::print(&program),
        program.name
    );
    let g = graph(&text);
    let kiln_graph::Op::Launch(launch) = g.op(ValueId(1)) else { panic!("{g}") };
    let found = launch_access(launch, &[&Type::new(kiln_graph::DType::F32, [8])]);
    [found.operands[0].fusable, found.results[0].fusable]
}

#[test]
fn accesses_say_why_nothing_fuses() {
    let plain = |name: &str, by: i64, end: i64| {
        write(name, |k| {
            let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
            let at = (k.program_id(0) * 4 + k.arange(4)) * by;
            let inside = at.lt(end);
            let v = (x + at).masked(inside).load();
            (out + at).masked(inside).store(v);
        })
    };
    assert_eq!(accesses(plain("whole", 1, 8), 2), [Ok(()), Ok(())]);
    assert_eq!(accesses(plain("too_few", 1, 8), 1), [Ok(()), Err(Unfusable::PartlyStored)]);
    assert_eq!(accesses(plain("every_second", 2, 8), 2), [Ok(()), Err(Unfusable::PartlyStored)]);
    assert_eq!(accesses(plain("masked", 1, 7), 2), [Ok(()), Err(Unfusable::PartlyStored)]);
    let twice = write("two_stores", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let at = k.arange(8);
        let v = (x + at).load();
        (out + at).masked(at.lt(3)).store(v);
        (out + at).masked(at.ge(3)).store(v + v);
    });
    assert_eq!(accesses(twice, 1), [Ok(()), Ok(())], "together they store all");
    let indirect = write("indirect", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let at = k.arange(8);
        let place = (x + at).load().to(Elem::I32);
        (out + place).masked(place.lt(8) & place.ge(0)).store((x + (7 - at)).load());
    });
    assert_eq!(accesses(indirect, 1), [Ok(()), Err(Unfusable::NotAffine)]);
    let hidden = write("hidden", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let at = k.arange(8);
        let v = (x + at).load();
        (out + at).masked(v.gt(0.0)).store(v);
    });
    assert_eq!(accesses(hidden, 1), [Ok(()), Err(Unfusable::NotAffine)]);
    let read_back = write("read_back", |k| {
        let [x, out] = ["x", "out"].map(|name| k.pointer(name, Elem::F32));
        let at = k.arange(8);
        (out + at).store((x + at).load());
        (out + at).store((out + at).load() + 1.0);
    });
    assert_eq!(accesses(read_back, 1), [Ok(()), Err(Unfusable::ReadBack)]);
}
