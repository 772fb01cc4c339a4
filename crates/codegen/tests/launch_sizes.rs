//! Random kernels written by hand, over blocks whose sizes are mostly no powers of two, three ways: what lies behind a
//! block's size never counts. The interpreter is compared with arrays computed here.
use crate::support::Random;
use crate::support::launch::Launch;
use kiln_block::Elem;
use kiln_kernels::{Argument, ArgumentFacts, Binding, Function, Number, Options, Signature, Unit, compile, free_names};
use kiln_machine::Arch;

const PROGRAMS: u64 = 80;
/// Elements of the largest block.
const MAX_COUNT: usize = 600;

/// A block's values, and how many numbers it takes to index them.
#[derive(Clone)]
struct Array {
    shape: Vec<usize>,
    values: Vec<i32>,
}

impl Array {
    fn from_index(shape: &[usize], value: impl Fn(&[usize]) -> i32) -> Array {
        let count = shape.iter().product();
        let mut values = Vec::with_capacity(count);
        for mut number in 0..count {
            let mut index = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                index[axis] = number % shape[axis];
                number /= shape[axis];
            }
            values.push(value(&index));
        }
        Array { shape: shape.to_vec(), values }
    }
    fn at(&self, index: &[usize]) -> i32 {
        let place = index.iter().zip(&self.shape).fold(0, |place, (i, size)| place * size + i);
        self.values[place]
    }
    fn map(&self, value: impl Fn(i32) -> i32) -> Array {
        Array { shape: self.shape.clone(), values: self.values.iter().map(|v| value(*v)).collect() }
    }
    /// All elements along an axis, for a position on the others.
    fn line(&self, index: &[usize], axis: usize) -> Vec<i32> {
        let mut index = index.to_vec();
        (0..self.shape[axis])
            .map(|at| {
                index[axis] = at;
                self.at(&index)
            })
            .collect()
    }
}

/// A kernel's lines, and what its variable `v` holds after them.
struct Drawn {
    lines: Vec<String>,
    v: Array,
}

impl Drawn {
    fn new(random: &mut Random) -> Drawn {
        let shape = [1 + random.next_below(24), 1 + random.next_below(24)];
        let [rows, columns] = shape;
        let lines =
            vec![format!("v = tl.load(x + tl.arange(0, {rows})[:, None] * {columns} + tl.arange(0, {columns}))")];
        let v = Array::from_index(&shape, |index| input(index[0] * columns + index[1]));
        Drawn { lines, v }
    }
    fn rank(&self) -> usize {
        self.v.shape.len()
    }
    fn step(&mut self, random: &mut Random) {
        let axis = random.next_below(self.rank());
        match random.next_below(12) {
            0 => self.set("v * 3 - 7", self.v.map(|v| v.wrapping_mul(3).wrapping_sub(7))),
            1 => self.set("tl.where(v > 0, v, 5 - v)", self.v.map(|v| if v > 0 { v } else { 5i32.wrapping_sub(v) })),
            2 => self.add_index(),
            3 => self.reverse_axes(),
            4 => self.reshape(random),
            5 if self.rank() > 1 => self.reduce(random, axis),
            6 => self.scan(random, axis),
            7 => self.flip(axis),
            8 => self.slice(random, axis),
            9 if self.rank() > 1 => self.element(random, axis),
            10 => self.assign(random, axis),
            _ => self.concatenate(axis),
        }
    }
    fn set(&mut self, expression: &str, v: Array) {
        self.lines.push(format!("v = {expression}"));
        self.v = v;
    }
    fn add_index(&mut self) {
        let last = self.rank() - 1;
        let sum = Array::from_index(&self.v.shape, |index| self.v.at(index).wrapping_add(index[last] as i32));
        self.set(&format!("v + tl.arange(0, {})", self.v.shape[last]), sum);
    }
    fn reverse_axes(&mut self) {
        let order: Vec<String> = (0..self.rank()).rev().map(|axis| axis.to_string()).collect();
        let shape: Vec<usize> = self.v.shape.iter().rev().copied().collect();
        let reversed = |index: &[usize]| index.iter().rev().copied().collect::<Vec<_>>();
        let moved = Array::from_index(&shape, |index| self.v.at(&reversed(index)));
        self.set(&format!("tl.permute(v, {})", order.join(", ")), moved);
    }
    fn reshape(&mut self, random: &mut Random) {
        let mut rest: usize = self.v.shape.iter().product();
        let mut shape = vec![];
        for _ in 0..random.next_below(3) {
            let factors: Vec<usize> = (1..=rest).filter(|n| rest.is_multiple_of(*n)).collect();
            let factor = factors[random.next_below(factors.len())];
            shape.push(factor);
            rest /= factor;
        }
        shape.push(rest);
        let v = Array { shape: shape.clone(), values: self.v.values.clone() };
        self.set(&format!("tl.reshape(v, {shape:?})"), v);
    }
    fn reduce(&mut self, random: &mut Random, axis: usize) {
        let (name, combine): (&str, fn(i32, i32) -> i32) = [
            ("total", (|a, b| a.wrapping_add(b)) as fn(i32, i32) -> i32),
            ("tl.maximum", |a: i32, b: i32| a.max(b)),
            ("tl.minimum", |a: i32, b: i32| a.min(b)),
            ("bits", |a: i32, b: i32| a ^ b),
            ("larger_half", |a: i32, b: i32| if a / 2 > b / 2 || (a / 2 == b / 2 && a > b) { a } else { b }),
        ][random.next_below(5)];
        let mut shape = self.v.shape.clone();
        shape.remove(axis);
        let reduced = Array::from_index(&shape, |index| {
            let mut index = index.to_vec();
            index.insert(axis, 0);
            self.v.line(&index, axis).into_iter().reduce(combine).unwrap()
        });
        self.set(&format!("tl.reduce(v, {axis}, {name})"), reduced);
    }
    fn scan(&mut self, random: &mut Random, axis: usize) {
        let reverse = random.next_below(2) == 1;
        let scanned = Array::from_index(&self.v.shape, |index| {
            let line = self.v.line(index, axis);
            let part = if reverse { &line[index[axis]..] } else { &line[..=index[axis]] };
            part.iter().fold(0i32, |a, b| a.wrapping_add(*b))
        });
        self.set(&format!("tl.cumsum(v, {axis}, reverse={})", if reverse { "True" } else { "False" }), scanned);
    }
    fn flip(&mut self, axis: usize) {
        let flipped = Array::from_index(&self.v.shape, |index| {
            let mut index = index.to_vec();
            index[axis] = self.v.shape[axis] - 1 - index[axis];
            self.v.at(&index)
        });
        self.set(&format!("tl.flip(v, {axis})"), flipped);
    }
    fn concatenate(&mut self, axis: usize) {
        if 2 * self.v.values.len() > MAX_COUNT {
            return;
        }
        let size = self.v.shape[axis];
        let mut shape = self.v.shape.clone();
        shape[axis] *= 2;
        let both = Array::from_index(&shape, |index| {
            let mut index = index.to_vec();
            let second = index[axis] >= size;
            index[axis] %= size;
            if second { self.v.at(&index).wrapping_add(1) } else { self.v.at(&index) }
        });
        self.set(&format!("tl.cat(v, v + 1, dim={axis})"), both);
    }
    /// A constant part of an axis: where it begins and ends.
    fn part(&self, random: &mut Random, axis: usize) -> [usize; 2] {
        let from = random.next_below(self.v.shape[axis]);
        [from, from + 1 + random.next_below(self.v.shape[axis] - from)]
    }
    /// `v[:, item, :]`, with the item at an axis.
    fn subscript(&self, axis: usize, item: &str) -> String {
        let items: Vec<&str> = (0..self.rank()).map(|at| if at == axis { item } else { ":" }).collect();
        format!("v[{}]", items.join(", "))
    }
    fn slice(&mut self, random: &mut Random, axis: usize) {
        let [from, to] = self.part(random, axis);
        let mut shape = self.v.shape.clone();
        shape[axis] = to - from;
        let part = Array::from_index(&shape, |index| {
            let mut index = index.to_vec();
            index[axis] += from;
            self.v.at(&index)
        });
        self.set(&self.subscript(axis, &format!("{from}:{to}")), part);
    }
    /// At a position of the launch or a constant one.
    fn element(&mut self, random: &mut Random, axis: usize) {
        let at = random.next_below(self.v.shape[axis]);
        let mut shape = self.v.shape.clone();
        shape.remove(axis);
        let taken = Array::from_index(&shape, |index| {
            let mut index = index.to_vec();
            index.insert(axis, at);
            self.v.at(&index)
        });
        let position = if random.next_below(2) == 0 { format!("{at}") } else { format!("tl.program_id(0) + {at}") };
        self.set(&self.subscript(axis, &position), taken);
    }
    /// A part is increased by its own elements, which moves them to their places again.
    fn assign(&mut self, random: &mut Random, axis: usize) {
        let [from, to] = self.part(random, axis);
        let inside = |index: &[usize]| (from..to).contains(&index[axis]);
        let changed = |index: &[usize]| self.v.at(index).wrapping_mul(if inside(index) { 3 } else { 1 });
        let v = Array::from_index(&self.v.shape, changed);
        let part = self.subscript(axis, &format!("{from}:{to}"));
        self.lines.push(format!("{part} += {part} * 2"));
        self.v = v;
    }
    fn text(&self) -> String {
        let body = self.lines.join("\n    ");
        let count = self.v.values.len();
        format!(
            "def kernel(x, out):\n    {body}\n    tl.store(out + tl.arange(0, {count}), tl.reshape(v, [{count}]))\n"
        )
    }
}

fn input(place: usize) -> i32 {
    (place as i32).wrapping_mul(-1_640_531_527) >> 20
}

const HELPERS: [&str; 3] = [
    "def total(a, b):\n    return a + b\n",
    "def bits(a, b):\n    return a ^ b\n",
    "def larger_half(a, b):\n    first = (a // 2 > b // 2) | ((a // 2 == b // 2) & (a > b))\n    return tl.where(first, a, b)\n",
];

fn unit(kernel: &str) -> Unit {
    let texts = HELPERS.iter().copied().chain([kernel]);
    let name = |text: &str| text.trim_start_matches("def ").split('(').next().unwrap_or_default().to_string();
    let helpers: Vec<String> = HELPERS.iter().map(|text| name(text)).collect();
    let function = |text: &str| {
        let bound = |path: String| {
            let root = path.split('.').next()?.to_string();
            match helpers.iter().position(|helper| *helper == root) {
                Some(at) => Some((root, Binding::Function(at))),
                None => (root == "tl").then_some((root, Binding::Module("triton.language".into()))),
            }
        };
        Function {
            name: name(text),
            source: text.into(),
            bindings: free_names(text).unwrap().into_iter().filter_map(bound).collect(),
            ..Function::default()
        }
    };
    Unit { functions: texts.map(function).collect(), entry: HELPERS.len() }
}

#[test]
fn blocks_of_any_size_agree() {
    let pointer = Argument::Pointer {
        elem: Number::Int32,
        facts: ArgumentFacts { div: Some(16), noalias: true, ..ArgumentFacts::default() },
    };
    let signature = Signature { arguments: vec![pointer; 2] };
    for seed in 0..PROGRAMS {
        let mut random = Random::new(seed);
        let mut drawn = Drawn::new(&mut random);
        for _ in 0..1 + random.next_below(5) {
            drawn.step(&mut random);
        }
        let text = drawn.text();
        let about = format!("seed {seed}:\n{text}");
        let compiled = compile(&unit(&text), &signature, &Options::default()).unwrap_or_else(|e| panic!("{about}{e}"));
        let bytes = |values: Vec<i32>| values.into_iter().flat_map(i32::to_le_bytes).collect::<Vec<u8>>();
        let count = drawn.v.values.len();
        let launch = Launch::new([1, 1, 1])
            .buffer(Elem::I32, bytes((0..MAX_COUNT).map(input).collect()))
            .buffer(Elem::I32, bytes(vec![-1; count + 3]));
        let got = launch.interpreted(&compiled.program).unwrap_or_else(|e| panic!("{about}{e}"));
        let want = [drawn.v.values, vec![-1; 3]].concat();
        assert_eq!(got[1], bytes(want), "{about}");
        assert!(
            launch.agrees(&compiled.program, [Arch::Sm90a, Arch::Sm80][seed as usize % 2], &about),
            "{about} has no PTX"
        );
    }
}
