//! The seed kernels compared with plain loops, and programs that the interpreter rejects.
use kiln_block::{BlockProgram, Elem, text::parse};
use kiln_graph::Random;
use kiln_interp::block::{Buffer, InterpError, run};

fn seed(name: &str) -> BlockProgram {
    let path = format!("{}/../block/tests/kernels/{name}.block", env!("CARGO_MANIFEST_DIR"));
    parse(&std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}")))
        .unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Deterministic numbers between -1 and 1.
fn numbers(n: usize, seed: u64) -> Vec<f64> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(|| 2.0 * random.uniform() - 1.0).take(n).collect()
}
fn close(got: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    for (i, (g, w)) in got.iter().zip(wanted).enumerate() {
        assert!((g - w).abs() <= tolerance * (1.0 + w.abs()), "element {i}: {g}, expected {w}");
    }
}

#[test]
fn vector_add() {
    let mut k = seed("vector_add");
    k.grid = [977, 1, 1].into();
    let n = 1_000_000;
    let x = Buffer::from_f64(Elem::F32, &[n], numbers(n, 1));
    let y = Buffer::from_f64(Elem::F32, &[n], numbers(n, 2));
    let wanted: Vec<f64> = x.to_f64().iter().zip(y.to_f64()).map(|(a, b)| f64::from((a + b) as f32)).collect();
    let mut buffers = [x, y, Buffer::zeros(Elem::F32, &[n])];
    run(&k, &mut buffers).unwrap();
    assert!(buffers[2].to_f64() == wanted);
}

#[test]
fn softmax() {
    let mut k = seed("softmax");
    k.grid = [5, 1, 1].into();
    let (rows, n) = (5, 781);
    let x = Buffer::from_f64(Elem::F32, &[rows, n], numbers(rows * n, 3));
    let mut wanted = vec![];
    for row in x.to_f64().chunks(n) {
        let sum: f64 = row.iter().map(|v| v.exp()).sum();
        wanted.extend(row.iter().map(|v| v.exp() / sum));
    }
    let mut buffers = [x, Buffer::zeros(Elem::F32, &[rows, n])];
    run(&k, &mut buffers).unwrap();
    close(&buffers[1].to_f64(), &wanted, 1e-6);
}

fn reference(a: &[f64], b: &[f64], m: usize, k: usize, n: usize) -> Vec<f64> {
    let at = |i: usize, j: usize| (0..k).map(|l| a[i * k + l] * b[l * n + j]).sum();
    (0..m * n).map(|p| at(p / n, p % n)).collect()
}

#[test]
fn matmul() {
    let (m, k, n) = (256, 128, 192);
    let a = Buffer::from_f64(Elem::Bf16, &[m, k], numbers(m * k, 4));
    let b = Buffer::from_f64(Elem::Bf16, &[k, n], numbers(k * n, 5));
    let wanted = reference(&a.to_f64(), &b.to_f64(), m, k, n);
    let mut buffers = [a, b, Buffer::zeros(Elem::Bf16, &[m, n])];
    run(&seed("matmul"), &mut buffers).unwrap();
    close(&buffers[2].to_f64(), &wanted, 1.0 / 256.0);
}

#[test]
fn attention() {
    let mut kernel = seed("attention");
    kernel.grid = [4, 2, 1].into();
    let (heads, rows, d) = (2, 256, 64);
    let make = |s| Buffer::from_f64(Elem::F16, &[heads, rows, d], numbers(heads * rows * d, s));
    let (q, k, v) = (make(6), make(7), make(8));
    let mut wanted = vec![];
    for h in 0..heads {
        let head = |b: &Buffer| b.to_f64()[h * rows * d..][..rows * d].to_vec();
        let (q, k, v) = (head(&q), head(&k), head(&v));
        for i in 0..rows {
            let score = |j: usize| (0..d).map(|c| q[i * d + c] * k[j * d + c]).sum::<f64>() / 8.0;
            let e: Vec<f64> = (0..rows).map(|j| score(j).exp()).collect();
            let sum: f64 = e.iter().sum();
            wanted.extend((0..d).map(|c| (0..rows).map(|j| e[j] * v[j * d + c]).sum::<f64>() / sum));
        }
    }
    let mut buffers = [q, k, v, Buffer::zeros(Elem::F16, &[heads, rows, d])];
    run(&kernel, &mut buffers).unwrap();
    close(&buffers[3].to_f64(), &wanted, 2e-3);
}

#[test]
fn roles_and_tensor_maps() {
    let (m, k, n) = (128, 256, 128);
    let a = Buffer::from_f64(Elem::Bf16, &[m, k], numbers(m * k, 9));
    let b = Buffer::from_f64(Elem::Bf16, &[k, n], numbers(k * n, 10));
    let wanted = reference(&a.to_f64(), &b.to_f64(), m, k, n);
    let mut buffers = [a, b, Buffer::zeros(Elem::F32, &[m, n])];
    run(&seed("pipeline"), &mut buffers).unwrap();
    close(&buffers[2].to_f64(), &wanted, 1e-5);
}

/// TMA traps at tiles that do not start at a multiple of 16 bytes.
#[test]
fn unaligned_tiles_are_refused() {
    let text = include_str!("../../block/tests/kernels/pipeline.block");
    let from = text.replace("%stage, %k0, %n0", "%stage, %k0, %one");
    let bf16 = |rows, columns| Buffer::from_f64(Elem::Bf16, &[rows, columns], numbers(rows * columns, 3));
    let mut buffers = [bf16(128, 256), bf16(256, 128), Buffer::zeros(Elem::F32, &[128, 128])];
    let wrong = run(&parse(&from).unwrap(), &mut buffers).unwrap_err().to_string();
    assert!(wrong.contains("multiples of 16 bytes"), "{wrong}");
}

/// Runs a kernel body with `%x` and `%y`, f32 pointers to 8 elements, x = 1, 2, …; returns y.
fn lines(body: &str) -> Result<Vec<f64>, InterpError> {
    let source = format!("kernel @k(%x: ptr<f32> readonly, %y: ptr<f32>) grid [1, 1, 1] warps 4 {{\n{body}\n}}");
    let k = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let mut buffers = [Buffer::from_f64(Elem::F32, &[8], (1..=8).map(f64::from)), Buffer::zeros(Elem::F32, &[8])];
    run(&k, &mut buffers)?;
    Ok(buffers[1].to_f64())
}
const POINTERS: &str = "%i = iota : i32[8]\n%xs = splat %x : ptr<f32>[8]\n%xp = ptr_add %xs, %i : ptr<f32>[8]
    %ys = splat %y : ptr<f32>[8]\n%yp = ptr_add %ys, %i : ptr<f32>[8]\n%z = const 0 : i32\n";

#[test]
fn an_asynchronous_copy_arrives_at_its_wait() {
    let copy = "%s = alloc_shared : shared<f32[8], 1, plain>\nasync_copy %s, %z, %xp\nasync_commit\n";
    let after = "%v = shared_load %s, %z : f32[8]\nstore %yp, %v";
    let waited = lines(&format!("{POINTERS}{copy}async_wait 0\nsync\n{after}")).unwrap();
    assert_eq!(waited, [1., 2., 3., 4., 5., 6., 7., 8.]);
    assert!(lines(&format!("{POINTERS}{copy}{after}")).unwrap().iter().all(|v| v.is_nan()));
}

#[test]
fn scans_positions_and_branches() {
    let scanned =
        lines(&format!("{POINTERS}%v = load %xp : f32[8]\n%s = scan sum %v axis 0 : f32[8]\nstore %yp, %s")).unwrap();
    assert_eq!(scanned, [1., 3., 6., 10., 15., 21., 28., 36.]);
    let body = "%v = load %xp : f32[8]\n%at = reduce argmax %v axis 0 : i32\n%seven = const 7 : i32
        %last = cmp eq %at, %seven : bool\n%r = if %last : f32 {\n%a = const 2.0 : f32\nyield %a\n} else {\n%b = const nan : f32\nyield %b\n}
        %rs = splat %r : f32[8]\nstore %yp, %rs";
    assert_eq!(lines(&format!("{POINTERS}{body}")).unwrap(), [2.0; 8]);
}

#[test]
fn refusals() {
    let outside =
        lines(&format!("{POINTERS}%j = const 1 : i32[8]\n%p = ptr_add %xp, %j : ptr<f32>[8]\n%v = load %p : f32[8]"));
    let e = outside.unwrap_err().to_string();
    assert!(e.contains("kernel k") && e.contains("load") && e.contains("element 8 of `x`, which has 8"), "{e}");
    let e = lines("%b = alloc_barriers : barrier<1, 1>\n%z = const 0 : i32\nbarrier_wait %b, %z, %z")
        .unwrap_err()
        .to_string();
    assert!(e.contains("waits for a barrier"), "{e}");
    let e = lines("%z = const 0 : i32\n%t = sub %z, %z : i32\nfor %n in %z..%z step %t {\nyield\n}")
        .unwrap_err()
        .to_string();
    assert!(e.contains("the step is 0"), "{e}");
    assert!(matches!(run(&seed("softmax"), &mut []), Err(InterpError::Buffers { .. })));
    let mut wrong = [Buffer::zeros(Elem::F16, &[8]), Buffer::zeros(Elem::F32, &[8])];
    assert!(run(&seed("softmax"), &mut wrong).unwrap_err().to_string().contains("holds f16"));
}

/// Prints, and what checks find.
mod checked {
    use super::*;
    use kiln_block::Inst;
    use kiln_interp::block::{Checks, FindingKind, Launch, Observer, UNWRITTEN, run_checked};

    #[derive(Default)]
    struct Log(Vec<(usize, String, Vec<f64>)>);
    impl Observer for Log {
        fn print(&mut self, _: Inst, at: [usize; 3], text: &str, value: Option<&Buffer>) -> Result<(), String> {
            self.0.push((at[0], text.into(), value.map_or(vec![], Buffer::to_f64)));
            Ok(())
        }
    }

    /// Runs instances of a body on `%x`, 8 floats, and gives the kinds of findings with the op of each.
    fn findings(instances: usize, x: &[f64], body: &str, log: &mut Log) -> Vec<(FindingKind, String, i64)> {
        findings_in(instances, Buffer::from_f64(Elem::F32, &[x.len()], x.iter().copied()), body, log)
    }
    fn findings_in(instances: usize, x: Buffer, body: &str, log: &mut Log) -> Vec<(FindingKind, String, i64)> {
        let source = format!("kernel @k(%x: ptr<f32>, %n: i32) grid launch warps 1 {{\n{body}\n}}");
        let k = parse(&source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        let mut buffers = [x, Buffer::scalar(Elem::I32, 65536.0)];
        let mut checks = Checks::new(&k, 2, true);
        let launch = Launch { grid: [instances, 1, 1], buffers: &mut buffers, starts: &[(0, 0), (1, 0)], origins: &[] };
        run_checked(&k, launch, &mut checks, log).unwrap();
        let op = |inst| k.inst(inst).op.clone();
        checks.findings().iter().map(|f| (f.kind, format!("{:?}", op(f.inst)), f.element)).collect()
    }
    const PLACE: &str = "%p = program_id 0 : i32\n%a = ptr_add %x, %p : ptr<f32>\n";

    #[test]
    fn accesses_outside_go_on() {
        let body = format!("{PLACE}%v = load %a : f32\nprint \"v\" %v\n%t = const true : bool\nstore %a, %v, %t");
        let mut log = Log::default();
        let found = findings(4, &[1.0, 2.0, 3.0], &body, &mut log);
        assert_eq!(found[0].0, FindingKind::OutOfBounds { masked: false });
        assert_eq!(found[1].0, FindingKind::OutOfBounds { masked: true });
        assert_eq!((found.len(), found[0].2), (2, 3));
        assert_eq!(log.0.last(), Some(&(3, "v".to_string(), vec![0.0])));
    }

    #[test]
    fn races_are_between_instances_that_are_not_ordered() {
        let add = "%v = load %x : f32\n%one = const 1.0 : f32\n%s = add %v, %one : f32\nstore %x, %s";
        let found = findings(3, &[0.0], add, &mut Log::default());
        assert!(found.iter().all(|f| matches!(f.0, FindingKind::Race { .. })) && found.len() == 2, "{found:?}");
        assert!(findings(1, &[0.0], add, &mut Log::default()).is_empty());
        // The same value from every instance is no race.
        let same = "%one = const 1.0 : f32\nstore %x, %one";
        assert!(findings(3, &[1.0], same, &mut Log::default()).is_empty());
        let atomic = "%one = const 1.0 : f32\natomic_add %x, %one";
        assert!(findings(3, &[0.0], atomic, &mut Log::default()).is_empty());
        // A plain read of what others update.
        let mixed = format!("{atomic}\n%v = load %x : f32");
        assert!(!findings(3, &[0.0], &mixed, &mut Log::default()).is_empty());
    }

    #[test]
    fn releases_order_what_acquires_them() {
        let locked = |order: &str| {
            format!(
                "%q = ptr_add %x, %n : ptr<f32>\n%l = bitcast %x : ptr<i32>\n%four = const 4 : i32\n\
                 %d = ptr_add %x, %four : ptr<f32>\n%one = const 1 : i32\n%zero = const 0 : i32\n\
                 %got = atomic_exchange {order} %l, %one : i32\n%v = load %d : f32\n%f = const 1.0 : f32\n\
                 %s = add %v, %f : f32\nstore %d, %s\n%was = atomic_exchange {order} %l, %zero : i32"
            )
        };
        let x = [0.0; 8];
        assert_eq!(findings(3, &x, &locked("acquire_release"), &mut Log::default()), []);
        assert!(!findings(3, &x, &locked(""), &mut Log::default()).is_empty());
    }

    #[test]
    fn integers_that_wrap_on_the_way_to_an_address() {
        let body = "%m = mul %n, %n : i32\n%b = splat %m : i32[4]\n%i = iota : i32[4]\n%o = add %b, %i : i32[4]\n\
                    %xs = splat %x : ptr<f32>[4]\n%a = ptr_add %xs, %o : ptr<f32>[4]\n%v = load %a : f32[4]";
        let found = findings(1, &[1.0; 4], body, &mut Log::default());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, FindingKind::Overflow { meant: 1 << 32 });
        // The mask leaves out what wraps.
        let masked = body.replace("load %a", "const false : bool[4]\n%w = load %a, %v");
        assert_eq!(findings(1, &[1.0; 4], &masked, &mut Log::default()), []);
    }

    #[test]
    fn memory_that_nothing_has_written() {
        let body = format!("{PLACE}%v = load %a : f32\nstore %a, %v\n%w = load %a : f32");
        let bytes: Vec<u8> = [0, 0, UNWRITTEN, UNWRITTEN].iter().flat_map(|w: &u16| w.to_le_bytes()).collect();
        let found = findings_in(2, Buffer::new(Elem::F32, &[2], bytes), &body, &mut Log::default());
        assert_eq!(found.iter().map(|f| (f.0, f.2)).collect::<Vec<_>>(), [(FindingKind::Unwritten, 1)]);
    }

    #[test]
    fn assertions_end_the_run() {
        let e = lines("%f = const false : bool[8]\nassert \"f holds\" %f").unwrap_err().to_string();
        assert!(e.contains("f holds") && e.contains("element 0"), "{e}");
        let body = "%f = const false : bool[8]\nassert \"masked\" %f, %f\nprint \"nobody listens\" %f";
        assert!(lines(body).is_ok());
    }
}
