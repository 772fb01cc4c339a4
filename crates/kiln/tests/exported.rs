//! A program of torch.export, written by hand: `relu(x + w)`.
use kiln::{
    CompileOptions, DType, DeviceKind, Engine, Model, Param, Program, Settings, Tensor, Type,
    bench::{Against, BenchOptions, Reference, bench},
    program::Sizes,
};
use serde_json::{Value, json};
use std::{fs::File, io::Write, path::Path, time::Duration};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// A vector of `size` f32.
fn vector(size: Value) -> Value {
    json!({"dtype": 7, "sizes": [size], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0}})
}

/// Writes the program for vectors of 2 s0 elements, with one weight for all of them.
fn write(path: &Path) {
    let tensor = |name: &str| json!({"as_tensor": {"name": name}});
    let node =
        |target: &str, inputs: Value, out: &str| json!({"target": target, "inputs": inputs, "outputs": [tensor(out)]});
    let twice = json!({"as_expr": {"expr_str": "Mul(Integer(2), Symbol('s0'))", "hint": {"as_int": 4}}});
    let half = json!({"as_expr": {"expr_str": "Symbol('s0')", "hint": {"as_int": 2}}});
    let add = json!([{"name": "self", "arg": tensor("x")}, {"name": "other", "arg": tensor("p_w")}]);
    let program = json!({
        "graph_module": {
            "graph": {
                "nodes": [
                    node("torch.ops.aten.add.Tensor", add, "add"),
                    node("torch.ops.aten.relu.default", json!([{"name": "self", "arg": tensor("add")}]), "relu"),
                ],
                "tensor_values": {
                    "x": vector(twice.clone()), "p_w": vector(json!({"as_int": 1})), "add": vector(twice.clone()),
                    "relu": vector(twice),
                },
                "sym_int_values": {"n": half},
            },
            "signature": {
                "input_specs": [
                    {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
                    {"user_input": {"arg": tensor("x")}},
                ],
                "output_specs": [{"user_output": {"arg": tensor("relu")}}],
            },
        },
        "schema_version": {"major": 8, "minor": 17},
        "guards_code": [],
        "range_constraints": {"s0": {"min_val": 1, "max_val": 100}},
    });
    zipped(path, &program);
}

/// Writes an archive of a program and a weight.
fn zipped(path: &Path, program: &Value) {
    let meta = vector(json!({"as_int": 1}));
    let weight = json!({"path_name": "weight_0", "is_param": true, "use_pickle": false, "tensor_meta": meta});
    let mut zip = ZipWriter::new(File::create(path).expect("a file"));
    let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(64);
    for (name, bytes) in [
        ("archive_format", b"pt2".to_vec()),
        ("byteorder", b"little".to_vec()),
        ("models/model.json", program.to_string().into_bytes()),
        ("data/weights/model_weights_config.json", json!({"config": {"w": weight}}).to_string().into_bytes()),
        ("data/constants/model_constants_config.json", json!({"config": {}}).to_string().into_bytes()),
        ("data/weights/weight_0", 1.5f32.to_le_bytes().to_vec()),
    ] {
        zip.start_file(format!("m/{name}"), options).expect("a new entry");
        zip.write_all(&bytes).expect("room");
    }
    zip.finish().expect("room");
}

/// Doubles `n` elements, 4 in an instance.
const DOUBLE: &str = "kernel @double(%x: ptr<f32>, %out: ptr<f32>, %n: i32) grid launch warps 1 {
  %p = program_id 0 : i32
  %four = const 4 : i32
  %start = mul %p, %four : i32
  %starts = splat %start : i32[4]
  %lane = iota : i32[4]
  %i = add %starts, %lane : i32[4]
  %all = splat %n : i32[4]
  %inside = cmp lt %i, %all : bool[4]
  %from = splat %x : ptr<f32>[4]
  %from_i = ptr_add %from, %i : ptr<f32>[4]
  %v = load %from_i, %inside : f32[4]
  %sum = add %v, %v : f32[4]
  %to = splat %out : ptr<f32>[4]
  %to_i = ptr_add %to, %i : ptr<f32>[4]
  store %to_i, %sum, %inside
}";

/// Writes the program that launches it on vectors of s0 elements, as torch.export does.
fn write_launch(path: &Path) {
    let size = json!({"as_expr": {"expr_str": "Symbol('s0')", "hint": {"as_int": 4}}});
    let (tensor, text) = (|name: &str| json!({"name": name}), |text: &str| json!({"as_string": text}));
    let named = |name: &str, arg: Value| json!({"name": name, "arg": arg});
    let count = json!({"as_name": "n"});
    let one = json!({"as_int": 1});
    let inputs = json!([
        named("name", text("double")),
        named("program", text(DOUBLE)),
        named("parameters", text("x,out,n")),
        named("tensors", json!({"as_tensors": [tensor("x"), tensor("empty")]})),
        named("written", json!({"as_ints": [1]})),
        named("updated", json!({"as_ints": []})),
        named("integers", json!({"as_sym_ints": [count]})),
        named("floats", json!({"as_floats": []})),
        named("grid", json!({"as_sym_ints": [count, one, one]})),
    ]);
    let empty = json!([named("self", json!({"as_tensor": tensor("x")}))]);
    let outputs = json!([{"as_tensor": tensor("empty")}]);
    let results = json!([{"as_tensors": [tensor("doubled")]}]);
    let input = json!([named("a", json!({"as_tensor": tensor("x")})), named("dim", json!({"as_int": 0}))]);
    let nodes = json!([
        {"target": "torch.ops.aten.sym_size.int", "inputs": input, "outputs": [{"as_sym_int": {"as_name": "n"}}]},
        {"target": "torch.ops.aten.empty_like.default", "inputs": empty, "outputs": outputs},
        {"target": "torch.ops.kiln.launch.default", "inputs": inputs, "outputs": results},
    ]);
    let all = ["x", "empty", "doubled"].map(|name| (name.to_string(), vector(size.clone())));
    let graph = json!({
        "nodes": nodes, "tensor_values": serde_json::Map::from_iter(all), "sym_int_values": {"n": size},
    });
    let specs = json!([{"user_input": {"arg": {"as_tensor": tensor("x")}}}]);
    let gives = json!([{"user_output": {"arg": {"as_tensor": tensor("doubled")}}}]);
    let signature = json!({"input_specs": specs, "output_specs": gives});
    zipped(
        path,
        &json!({
            "graph_module": {"graph": graph, "signature": signature}, "schema_version": {"major": 8, "minor": 17},
            "guards_code": [], "range_constraints": {"s0": {"min_val": 1, "max_val": 100}},
        }),
    );
}

#[test]
fn a_kernel_written_by_hand_is_in_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.pt2");
    write_launch(&path);
    let engine = Engine::open(&path, &Settings::default()).expect("opens");
    for count in [3, 9] {
        let values: Vec<f64> = (0..count).map(f64::from).collect();
        let x = Tensor::from_f64(Type::new(DType::F32, [values.len()]), values.iter().copied());
        let want: Vec<f64> = values.iter().map(|v| 2.0 * v).collect();
        assert_eq!(engine.run(&[x]).expect("runs")[0].to_f64_vec(), want);
    }
}

#[test]
fn it_runs_with_its_weights_where_they_are_in_the_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.pt2");
    write(&path);
    let engine = Engine::open(&path, &Settings::default()).expect("opens");
    assert!(engine.params().iter().all(Param::is_foreign), "a weight was copied");
    for values in [vec![-2.0, 1.0], vec![-2.0, 1.0, 0.5, -1.0]] {
        let x = Tensor::from_f64(Type::new(DType::F32, [values.len()]), values.iter().copied());
        let want: Vec<f64> = values.iter().map(|v| (v + 1.5f64).max(0.0)).collect();
        assert_eq!(engine.run(&[x]).expect("runs")[0].to_f64_vec(), want);
    }
}

#[test]
fn a_dimension_that_follows_from_a_symbol_is_chosen() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.pt2");
    write(&path);
    let program = Program::open(&path).expect("opens");
    let sizes = |n| program.sizes(&Sizes::from([("x.0".to_string(), n)]), &[]).map_err(|e| e.sentence());
    assert_eq!(sizes(10), Ok(Sizes::from([("s0".to_string(), 5)])));
    assert!(sizes(7).is_err_and(|e| e.contains("`x.0` is 2*s0") && e.contains("give the size of s0")));
}

#[test]
fn libtorch_is_no_peer_of_it_and_the_bench_says_what_is() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.pt2");
    write(&path);
    let model = Model::open(&path, &[]).expect("opens");
    let options = BenchOptions {
        compile: CompileOptions::default(),
        device: DeviceKind::Cpu,
        threads: Some(1),
        against: Against { unfused: false, torch: true },
        min_time: Duration::ZERO,
    };
    let (measured, _) = bench(&model, &model.example_inputs(1), &options).expect("runs");
    let [missing] = &measured.missing[..] else { panic!("{:?}", measured.missing) };
    assert!(missing.contains(r#"bench(against=("eager", "inductor"))"#), "{missing}");
    assert!(measured.torch.is_none() && measured.reference == Reference::Interpreted);
}
