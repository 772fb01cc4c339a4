//! Files that users pass in place of a TorchScript archive: the error must say what each file is, and the lines of
//! Python in its help must produce an archive that Kiln compiles. `foreign.py` writes the files and runs the lines.
use kiln_number::Random;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

fn python(mode: &str, folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = root.join("../../.deps/venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/setup", python.display());
    let run = Command::new(python)
        .arg(root.join("tests/foreign.py"))
        .args([mode.as_ref(), folder.as_os_str()])
        .output()
        .expect("python starts");
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
}

/// Exit status and standard error of `kiln explain FILE` with inputs, run in the folder.
fn explain(folder: &Path, file: &str, inputs: &str) -> (Option<i32>, String) {
    let mut call = Command::new(env!("CARGO_BIN_EXE_kiln"));
    call.args(["explain", file]).current_dir(folder);
    if !inputs.is_empty() {
        call.args(["--inputs", inputs]);
    }
    let o = call.output().expect("kiln starts");
    let text = String::from_utf8_lossy(&o.stderr).into_owned();
    assert!(!text.contains("panicked"), "{file}: {text}");
    (o.status.code(), text)
}

/// The lines of Python in an error's help: those after the line that begins with `help:`.
fn lines_of_python(answer: &str) -> Vec<&str> {
    let after = answer.lines().skip_while(|l| !l.trim_start().starts_with("help:")).skip(1);
    after.map(str::trim).take_while(|l| !l.starts_with("and pass it as --inputs")).filter(|l| !l.is_empty()).collect()
}

#[test]
fn wrong_files_are_recognised_and_the_answers_python_fixes_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = dir.path();
    python("write", at);
    // File names are uninformative or wrong on purpose.
    let cases = [
        ("weights.onnx", "holds weights without a model (a state_dict)"),
        ("old.pt", "holds weights without a model (a state_dict)"),
        ("new_pickle.pt", "holds weights without a model (a state_dict)"),
        ("checkpoint.pt2", "is a checkpoint: a dict with weights under \"model_state_dict\""),
        ("module.pth", "holds a pickled module (torch.nn.modules.container.Sequential)"),
        ("tensors", "holds weights without a model (safetensors)"),
        ("train.kiln", "was saved in training mode"),
        ("transformers", "is a folder of a transformers model"),
    ];
    for (file, words) in cases {
        let (status, text) = explain(at, file, "in.safetensors");
        assert_eq!(status, Some(1), "{file}: {text}");
        assert!(text.contains(words), "{file}: no `{words}` in\n{text}");
        let lines = lines_of_python(&text);
        assert_eq!(lines.len(), 2, "{file}: {text}");
        std::fs::write(at.join(format!("{file}.lines")), lines.join("\n")).expect("written");
    }
    python("fix", at);
    for (file, _) in cases {
        let inputs = if file == "transformers" { "ids.safetensors" } else { "in.safetensors" };
        let (status, text) = explain(at, &format!("{file}.fixed.pt"), inputs);
        assert_eq!(status, Some(0), "{file}, fixed: {text}");
    }
    // A program of torch.export by any name is a model, which libtorch has no part in.
    let (status, text) = explain(at, "program.pt", "in.safetensors");
    assert_eq!(status, Some(0), "{text}");
    // Inputs by the names of forward's arguments.
    for file in ["program.pt", "good.pt"] {
        assert_eq!(explain(at, file, "named.safetensors").0, Some(0), "{file}");
        let (status, text) = explain(at, file, "misnamed.safetensors");
        assert_eq!(status, Some(1), "{file}: {text}");
        assert!(text.contains("\"inptu\" is no input: those are \"input\", or numbers"), "{file}: {text}");
    }
    // An archive without inputs: the help's lines write them.
    let (status, text) = explain(at, "good.pt", "");
    assert_eq!(status, Some(1), "{text}");
    std::fs::write(at.join("good.lines"), lines_of_python(&text).join("\n")).expect("written");
    python("inputs", at);
    assert_eq!(explain(at, "good.pt", "written.safetensors").0, Some(0));

    for (file, words) in [
        ("graph.pt", "is an ONNX model"),
        ("llama.pt", "GGUF"),
        ("tensor.pt", "holds a tensor, not a model"),
        ("in.safetensors", "give it as --inputs"),
        ("dict.pkl", "holds a pickled dict"),
        ("arrays.npz", "is a zip file without a model"),
        ("source.pt", "is Python source"),
        ("pointer.pt", "git lfs pull"),
        ("page.pt", "is a web page"),
        ("some", "give one of its files, as some/good.pt"),
    ] {
        let (status, text) = explain(at, file, "");
        assert_eq!(status, Some(1), "{file}: {text}");
        assert!(text.contains(words), "{file}: no `{words}` in\n{text}");
    }
}

/// An archive cut or changed at random places: always an error with help, never a panic.
#[test]
fn damaged_files_are_answered() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../graphs/mlp.pt")).expect("a sample archive");
    let path: PathBuf = dir.path().join("damaged.pt");
    let mut random = Random::new(1);
    for i in 0..40 {
        let place = random.next_below(whole.len());
        let mut bytes = whole.clone();
        match i % 2 {
            0 => bytes.truncate(place),
            // Changes a byte of the zip directory (names and lengths), which is at the end.
            _ => {
                let end = bytes.len() - 1 - place % 400;
                bytes[end] ^= 0x55;
            }
        }
        std::fs::write(&path, bytes).expect("written");
        let (status, text) = explain(dir.path(), "damaged.pt", "");
        assert!(status == Some(1) && text.contains("help:"), "{status:?} {text}");
    }
}
