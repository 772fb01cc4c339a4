//! `kiln tunings`: times of kernels move between stores, and configurations are pinned.
use std::path::Path;
use std::process::{Command, Output};

const STORE: &str = r#"{
  "kiln_measurements": 1,
  "entries": [],
  "kernels": [
    {
      "kernel": "softmax", "digest": "af01", "arguments": "781, torch.float32",
      "device": "NVIDIA H200", "target": "sm_90a", "compiler": "0.1.0/1",
      "configurations": [
        { "configuration": "BLOCK: 1024", "measured": { "us": { "median": 12.5, "low": 12.0, "high": 13.0 } } },
        { "configuration": "BLOCK: 2048", "measured": { "us": { "median": 10.0, "low": 9.5, "high": 11.0 } } },
        { "configuration": "BLOCK: 512", "measured": { "failed": "too short" } }
      ]
    }
  ]
}
"#;

fn kiln(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.arg("tunings").args(args).current_dir(folder).env("KILN_CACHE", folder.join("cache"));
    command.output().expect("kiln starts")
}
fn says(folder: &Path, args: &[&str]) -> String {
    let o = kiln(folder, args);
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8_lossy(&o.stdout).into_owned()
}

#[test]
fn times_are_imported_listed_pinned_and_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(folder.join("store.json"), STORE).expect("is written");
    assert_eq!(says(folder, &["list"]), "");
    assert_eq!(says(folder, &["import", "store.json"]), "store.json: 1 kernels with arguments\n");
    let listed = "softmax(781, torch.float32) on NVIDIA H200, sm_90a\n  \
                  runs   BLOCK: 2048       10.00 us (9.50 to 11.00)\n         \
                  BLOCK: 1024       12.50 us (12.00 to 13.00)\n         BLOCK: 512  failed: too short\n";
    assert_eq!(says(folder, &["list"]), listed);
    assert_eq!(says(folder, &["list", "--kernel", "other"]), "");
    says(folder, &["pin", "softmax", "BLOCK: 1024"]);
    assert!(says(folder, &["list"]).contains("  pinned BLOCK: 1024"));
    says(folder, &["export", "all.json"]);
    assert!(std::fs::read_to_string(folder.join("all.json")).expect("a store").contains("\"pinned\": \"BLOCK: 1024\""));
    says(folder, &["unpin", "softmax"]);
    assert_eq!(says(folder, &["list"]), listed);
}

#[test]
fn what_there_is_not_cannot_be_pinned() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(folder.join("store.json"), STORE).expect("is written");
    says(folder, &["import", "store.json"]);
    for (args, wanted) in [
        (["pin", "softmax", "BLOCK: 4096"], "softmax has no configuration `BLOCK: 4096`"),
        (["pin", "gelu", "BLOCK: 1024"], "there are no times of a kernel `gelu`"),
    ] {
        let o = kiln(folder, &args);
        let errors = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!(o.status.code(), Some(2), "{errors}");
        assert!(errors.contains(wanted) && errors.contains("kiln tunings list"), "{errors}");
    }
}
