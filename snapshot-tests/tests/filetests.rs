//! Runs `filetests/`, one mechanism per file. `KILN_BLESS=1` updates the expected text in the files; read the
//! difference before committing.
use kiln_snapshot_tests::filetest::FileTest;
use std::path::PathBuf;

/// Most lines of a file, so that it is short enough to be read as a whole.
const LONGEST: usize = 80;

fn files() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/filetests");
    let entries = std::fs::read_dir(folder).expect("filetests/ exists");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}

/// Fails if the output differs from the file's expected text; with `bless` updates the file instead.
fn run(file: &PathBuf, bless: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| e.to_string())?;
    let test = FileTest::parse(&text)?;
    let actual = test.actual()?;
    let now = test.blessed(&actual);
    if now.lines().count() > LONGEST {
        return Err(format!("{} lines; show less with `; only`", now.lines().count()));
    }
    match test.difference(&actual) {
        Some(_) if bless => std::fs::write(file, now).map_err(|e| e.to_string()),
        Some(diff) => Err(format!("the output differs; KILN_BLESS=1 updates the file:\n{diff}")),
        None => Ok(()),
    }
}

#[test]
fn mechanisms() {
    let bless = std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1");
    let files = files();
    assert!(files.len() >= 40, "only {} file tests found", files.len());
    let wrong: Vec<String> =
        files.iter().filter_map(|f| run(f, bless).err().map(|e| format!("{}: {e}", f.display()))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const RELU: &str =
    "# One op.\n; lower sm_90a\n; only load, max\ngraph relu(%x: f32[512]) {\n  %y = relu %x\n  return %y\n}\n";

#[test]
fn a_wrong_expectation_fails_and_blessing_fixes_it() {
    let test = FileTest::parse(&format!("{RELU}; gives\n  v0 = load nothing\n")).expect("parses");
    let actual = test.actual().expect("compiles");
    assert!(actual.contains("load") && !actual.contains("store"), "{actual}");
    let diff = test.difference(&actual).expect("differs");
    assert!(diff.contains("-  v0 = load nothing") || diff.contains("-v0 = load nothing"), "{diff}");
    assert!(diff.contains("+kernel @relu_0"), "{diff}");
    let fixed = FileTest::parse(&test.blessed(&actual)).expect("parses");
    assert_eq!(fixed.difference(&actual), None);
    assert_eq!(fixed.blessed(&actual), test.blessed(&actual));
}

#[test]
fn headers_that_say_nothing_are_refused() {
    for (text, why) in [
        ("graph a() {\n}\n", "what to run"),
        ("; fly sm_90a\n", "nothing to run"),
        ("; lower sm_1\n", "no target"),
        ("; lower cpu\n; check x\n", "not known"),
        ("; plan h200\n; schedule split i0 8\n", "is for lower and ptx"),
    ] {
        let e = FileTest::parse(text).expect_err(text);
        assert!(e.contains(why), "{e}");
    }
    let test = FileTest::parse("; lower cpu\ngraph a(%x: f32[2]) {\n").expect("parses");
    assert!(test.actual().expect_err("no graph").contains("does not parse"));
}
