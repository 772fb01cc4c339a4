//! What import refuses: all problems are reported together, each with its line in the model's source.
use crate::common::*;
use kiln_graph::{DType, Tensor, Type};
use kiln_torchscript::Memory;
use std::path::{Path, PathBuf};

fn errors(name: &str, inputs: &[Tensor]) -> Vec<kiln_torchscript::Problem> {
    match kiln_torchscript::import(&archive(name), inputs) {
        Ok(m) => panic!("{name} was imported:\n{}", summary(&m.graph)),
        Err(e) => e.errors,
    }
}

#[test]
fn a_branch_on_data_is_refused_with_its_line() {
    let found = errors("datadep", &inputs("datadep"));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].message.contains("reads a number out of the input's data"), "{found:#?}");
    let (file, line) = found[0].source.rsplit_once(':').unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/example_models");
    let text = std::fs::read_to_string(scripts.join(file)).unwrap();
    let line = text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap();
    assert!(line.contains("x.sum() > 0"), "{line}");
}

#[test]
fn all_problems_come_at_once() {
    let messages: Vec<String> =
        errors("many_problems", &inputs("many_problems")).into_iter().map(|p| p.message).collect();
    assert!(messages.len() >= 3, "{messages:#?}");
    assert!(messages.iter().any(|m| m.contains("boolean mask")), "{messages:#?}");
    assert!(messages.iter().any(|m| m.contains("aten::Bool")), "{messages:#?}");
}

#[test]
fn a_change_of_the_models_own_state_is_refused() {
    let found = errors("mutates_weight", &inputs("mutates_weight"));
    assert!(found.iter().any(|p| p.message.contains("the model's own tensor `count`")), "{found:#?}");
}

#[test]
fn an_archive_in_training_mode_is_refused_with_a_remedy() {
    for (name, op) in [("trains_dropout", "aten::dropout"), ("trains_norm", "aten::batch_norm")] {
        let found = errors(name, &inputs(name));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].message.contains("saved in training mode") && found[0].message.contains(op), "{found:#?}");
        assert!(found[0].help.contains("model.eval()"), "{found:#?}");
        assert!(found[0].source.contains(".py:"), "{found:#?}");
    }
    // A norm without running statistics does not indicate training mode.
    if let Err(e) = kiln_torchscript::import(&archive("batch_statistics"), &inputs("batch_statistics")) {
        assert!(e.errors.iter().all(|p| !p.message.contains("training mode")), "{e:#?}");
    }
}

#[test]
fn without_inputs_it_says_how_to_give_them() {
    let found = errors("several_inputs", &[]);
    assert!(found[0].message.contains("but 0 inputs were given"), "{found:#?}");
    for words in ["save_file({\"0\": ", "\"in.safetensors\")", "--inputs in.safetensors", "--input 'f32[8,128]'"] {
        assert!(found[0].help.contains(words), "no `{words}` in {found:#?}");
    }
}

#[test]
fn element_types_without_a_name_are_refused() {
    let found = errors("complex_inside", &inputs("complex_inside"));
    let said = "`aten::fft_rfft` gives complex64 values, a dtype that Kiln does not have";
    assert!(found.iter().any(|p| p.message.contains(said)), "{found:#?}");
}

/// The line of the model's source that a problem points at; empty if it is not in one of the example models' files.
fn source_line(p: &kiln_torchscript::Problem) -> String {
    let (file, line) = p.source.rsplit_once(':').unwrap_or_else(|| panic!("no source: {p:#?}"));
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/example_models");
    let Ok(text) = std::fs::read_to_string(scripts.join(file)) else { return String::new() };
    text.lines().nth(line.parse::<usize>().unwrap() - 1).unwrap().to_string()
}

#[test]
fn shapes_that_depend_on_data_are_refused_with_a_remedy() {
    let cases = [
        ("where", "torch.where(x > 0)", "nonzero_static"),
        ("nonzero", ".nonzero()", "nonzero_static"),
        ("argwhere", "torch.argwhere", "nonzero_static"),
        ("masked_select", ".masked_select(", "masked_fill"),
        ("mask_index", "x[x > 0]", "masked_fill"),
        ("unique", "torch.unique(", "outside"),
        ("unique_consecutive", "torch.unique_consecutive(", "outside"),
        ("one_hot", "F.one_hot(x)", "num_classes"),
        ("bincount", "torch.bincount", "F.one_hot"),
        ("repeat_interleave", ".repeat_interleave(n, 0)", "output_size"),
        ("repeats", "torch.repeat_interleave(n)", "output_size"),
        ("tensor_split", "torch.tensor_split", "list of ints"),
        ("pack_padded_sequence", "pack_padded_sequence(", "without pack_padded_sequence"),
    ];
    for (name, line, help) in cases {
        let name = format!("shape_{name}");
        let found = errors(&name, &inputs(&name));
        let p = found.iter().find(|p| p.help.contains(help)).unwrap_or_else(|| panic!("{name}: {found:#?}"));
        assert!(
            p.message.contains("depends on the input's data") || p.message.contains("reads a number"),
            "{name}: {p:#?}"
        );
        // If the operator is called by PyTorch's own Python code, the line may be in PyTorch's files.
        assert!(source_line(p).contains(line) || p.source.contains(line), "{name}: {p:#?}: {}", source_line(p));
    }
}

#[test]
fn what_cannot_be_followed_in_memory_is_refused() {
    for (name, message) in [
        ("op_as_strided_beside", "reads memory outside of a tensor's elements"),
        ("op_as_strided_scatter", "not dense and row-major"),
        ("mutates_through_list", "read through an alias"),
        ("mutates_overlapping", "a view made by `aten::unfold`"),
        ("mutates_shape", "in a way import cannot resolve"),
    ] {
        let found = errors(name, &inputs(name));
        let p = found.iter().find(|p| p.message.contains(message)).unwrap_or_else(|| panic!("{name}: {found:#?}"));
        assert!(!p.help.is_empty() && !p.source.is_empty(), "{name}: {p:#?}");
    }
}

#[test]
fn a_fallback_whose_result_changes_its_type_is_named() {
    let zeros = |n: usize| Tensor::zeros(Type::new(DType::F32, [n]));
    for (have, want) in [(3, 2), (2, 3)] {
        let (x, mut y) = (zeros(have), zeros(want));
        let ins = [Memory { ptr: x.bytes().as_ptr().cast_mut().cast(), ty: x.ty.clone() }];
        let outs = [Memory { ty: y.ty.clone(), ptr: y.bytes_mut().as_mut_ptr().cast() }];
        // SAFETY: host tensors of these types, alive during the call; the result does not overlap the operand.
        let e = unsafe { kiln_torchscript::call("aten::neg", "", r#"[{"tensor":0}]"#, &ins, &outs, -1) }.unwrap_err();
        let said = e.to_string();
        assert!(said.contains("`aten::neg`") && said.contains(&format!("f32[{have}]")), "{said}");
    }
}

#[test]
fn nested_tensors_name_the_option() {
    let found = errors("encoder_nested", &inputs("encoder_nested"));
    assert!(found.iter().any(|p| p.help.contains("enable_nested_tensor=False") && !p.source.is_empty()), "{found:#?}");
}

#[test]
fn wrong_inputs_are_named() {
    let few = errors("several_inputs", &inputs("several_inputs")[..1]);
    assert!(few[0].message.contains("but 1 inputs were given"), "{few:#?}");
    let many = errors("tiny_mlp", &[inputs("tiny_mlp"), inputs("tiny_mlp")].concat());
    assert!(many[0].message.contains("but 2 inputs were given"), "{many:#?}");
    let shape = errors("tiny_mlp", &[Tensor::zeros(Type::new(DType::F32, [8, 33]))]);
    assert!(shape[0].message.contains("running the model on the example inputs fails"), "{shape:#?}");
    assert!(shape[0].help.contains("[8, 33]"), "{shape:#?}");
    let scalar =
        errors("scalar_arguments", &[inputs("scalar_arguments")[0].clone(), Tensor::zeros(Type::new(DType::F32, []))]);
    assert!(scalar[0].message.contains("argument `n` is int"), "{scalar:#?}");
}

#[test]
fn what_is_no_archive_is_said() {
    let missing = kiln_torchscript::import(&archive("nothing_here"), &[]).unwrap_err();
    assert!(missing.errors[0].message.contains("no such file"), "{missing}");
    let text = archives().join("complete.txt");
    std::fs::write(&text, "not a zip").unwrap();
    let wrong = kiln_torchscript::import(&text, &[]).unwrap_err();
    assert!(wrong.errors[0].message.contains("cannot read the archive"), "{wrong}");
}

#[test]
fn arguments_and_guards() {
    let path = archive("scalar_arguments");
    let arguments = kiln_torchscript::arguments(&path).unwrap();
    let list: Vec<String> = arguments.iter().map(|a| format!("{}: {}", a.name, a.ty)).collect();
    assert_eq!(list, ["x: Tensor", "n: int", "scale: float", "flip: bool"]);
    let model = kiln_torchscript::import(&path, &inputs("scalar_arguments")).unwrap();
    let guards: Vec<&str> = model.guards.iter().map(|g| g.name.as_str()).collect();
    assert_eq!(guards, ["n", "scale", "flip"]);
    assert_eq!(model.graph.inputs.len(), 4);
}

#[test]
fn outputs_keep_their_structure() {
    let structure = |name| kiln_torchscript::import(&archive(name), &inputs(name)).unwrap().structure.to_string();
    assert_eq!(
        structure("out_tuple"),
        r#"{"tuple":[{"tensor":0},{"tuple":[{"tensor":1},{"list":[{"tensor":2},{"tensor":3}]}]}]}"#
    );
    assert_eq!(structure("out_dict"), r#"{"dict":[["sum",{"tensor":0}],["last",{"tensor":1}]]}"#);
}

/// An archive made of TorchScript source: `return EXPRESSION` of a forward that takes `x`.
fn scripted(name: &str, expression: &str) -> PathBuf {
    let program = format!(
        "import sys, torch\nm = torch.jit.ScriptModule()\nm.define('def forward(self, x):\\n    return \
         {expression}\\n')\n\
         torch.jit.save(m, sys.argv[1])"
    );
    exported(name, &program)
}

#[test]
fn operators_beyond_a_models_tensors_are_refused_before_they_run() {
    let secret = archives().join("secret.bin");
    std::fs::write(&secret, [1u8; 64]).unwrap();
    let written = archives().join("written.bin");
    let _ = std::fs::remove_file(&written);
    let file = |p: &Path| p.display().to_string();
    let x = [Tensor::zeros(Type::new(DType::F32, [4]))];
    for (name, expression, operator) in [
        ("reads", format!("x + torch.from_file(\"{}\", False, 4)", file(&secret)), "aten::from_file"),
        ("writes", format!("x if torch.ops.aten.save(x, \"{}\") is None else x", file(&written)), "aten::save"),
        ("beyond", "torch.ops.aten._reshape_alias(x, [99999], [1])".into(), "aten::_reshape_alias"),
    ] {
        let e = match kiln_torchscript::import(&scripted(name, &expression), &x) {
            Ok(m) => panic!("{name} was imported:\n{}", summary(&m.graph)),
            Err(e) => e.to_string(),
        };
        assert!(e.contains(operator) && e.contains("outside of the model's tensors"), "{name}: {e}");
    }
    assert!(!written.exists());
}

#[test]
fn what_libtorch_may_not_run_for_kiln_is_refused() {
    let x = [Tensor::zeros(Type::new(DType::F32, [4, 4]))];
    let e = kiln_torchscript::import(&scripted("own", "x + torch.ops.aten._neg_view_copy(x)"), &x);
    let e = e.map(|m| summary(&m.graph)).unwrap_err().to_string();
    assert!(e.contains("`aten::_neg_view_copy` has no compiled form") && e.contains("not among the operators"), "{e}");
}

#[test]
fn a_call_is_checked_where_it_is_made() {
    let ty = Type::new(DType::F32, [2, 3]);
    let x = Tensor::from_f64(ty.clone(), [3.0, 1.0, 2.0, -1.0, 5.0, 0.0]);
    let call = |name: &str, args: &str, results: &[&str]| {
        let op = kiln_graph::FallbackOp {
            name: name.into(),
            overload: String::new(),
            args: args.into(),
            results: results.iter().map(|r| r.parse().unwrap()).collect(),
            why: String::new(),
            vouched: false,
        };
        // Twice: after a checked first call, libtorch may write results in place.
        let _ = fallback(&op, std::slice::from_ref(&x));
        fallback(&op, std::slice::from_ref(&x)).map(|r| r[0].to_f64_vec())
    };
    for name in ["aten::from_file", "aten::save", "aten::_reshape_alias", "prim::ConstantChunk"] {
        let e = call(name, r#"[{"tensor":0}]"#, &["f32[2,3]"]).unwrap_err();
        assert!(e.contains("not among the operators"), "{name}: {e}");
    }
    assert!(
        call("aten::topk", r#"[{"tensor":0},"x"]"#, &["f32[2,1]", "i64[2,1]"]).unwrap_err().contains("argument `k`")
    );
    // Declared with another shape or dtype.
    for declared in ["f32[3,2]", "f64[2,3]", "f32[600]"] {
        let e = call("aten::erfc", r#"[{"tensor":0}]"#, &[declared]).unwrap_err();
        assert!(e.contains("`aten::erfc`") && e.contains("result 0 is f32[2,3], where the graph declares"), "{e}");
    }
    assert_eq!(call("aten::flip", r#"[{"tensor":0},[1]]"#, &["f32[2,3]"]).unwrap(), [2.0, 1.0, 3.0, 0.0, 5.0, -1.0]);
}
