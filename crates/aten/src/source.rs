//! Chooses the source line that is shown for an operator, and shortens its path.
//!
//! Takes the stack frames of a call, innermost first, one `file:line` per line. Shows the innermost frame outside of
//! torch: a line of the user's model, or of the library that defines it. Frames outside of the traced call (the script
//! that exported the model) are a last resort. Paths are relative to the common folder of the model's own files, or to
//! `site-packages`, so that they are the same on every machine and never contain a path of the exporting one.
use crate::{
    error::{ImportErrors, Problem},
    raw::Raw,
};

/// Whose code a frame is in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The user's own file.
    Own,
    /// An installed package.
    Library,
    /// torch itself, Python's standard library, or code without a file.
    Torch,
}

/// Folders and files in the Python package of a torch that is built in place instead of installed.
const TORCH: [&str; 8] = ["nn/", "jit/", "_", "utils/", "autograd/", "functional.py", "overrides.py", "ao/"];

/// The part of a path after `site-packages`.
fn installed(file: &str) -> Option<&str> {
    ["site-packages/", "dist-packages/"].iter().find_map(|p| file.rsplit_once(p)).map(|(_, rest)| rest)
}

/// The part of a path that begins with `torch/`, if the file belongs to torch.
fn torch(file: &str) -> Option<&str> {
    if let Some(rest) = installed(file) {
        return rest.starts_with("torch/").then_some(rest);
    }
    let rest = file.rsplit_once("/torch/")?.1;
    let own = TORCH.iter().any(|t| rest.starts_with(t));
    own.then(|| &file[file.len() - rest.len() - "torch/".len()..])
}

fn owner(frame: &str) -> Owner {
    let file = file(frame);
    if file.is_empty() || file.starts_with('<') || torch(file).is_some() {
        return Owner::Torch;
    }
    match installed(file) {
        Some(_) => Owner::Library,
        None if file.contains("/lib/python3") => Owner::Torch,
        None => Owner::Own,
    }
}

fn file(frame: &str) -> &str {
    frame.rsplit_once(':').map_or(frame, |(file, _)| file)
}

/// The frame to show.
fn shown(frames: &str) -> &str {
    let exporting = |f: &&str| torch(file(f)).is_some_and(|t| t == "torch/jit/_trace.py");
    let traced = || frames.lines().take_while(|f| !exporting(f));
    let outside_torch = |f: &&str| owner(f) != Owner::Torch;
    traced().find(outside_torch).or_else(|| traced().next()).or_else(|| frames.lines().next()).unwrap_or("")
}

/// The common folder of the model's own files, with a trailing `/`.
fn common<'a>(frames: impl Iterator<Item = &'a str>) -> &'a str {
    let own = frames.filter(|f| owner(f) == Owner::Own && f.starts_with('/'));
    let folder = |f: &'a str| f.rfind('/').map_or("", |i| &f[..=i]);
    own.map(folder).reduce(shared).unwrap_or("")
}

fn shared<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    a.get(..same).and_then(|s| s.rfind('/').map(|i| &s[..=i])).unwrap_or("")
}

fn short(frame: &str, root: &str) -> String {
    let file = file(frame);
    let line = &frame[file.len()..];
    let stdlib = || file.rsplit_once("/lib/python3").and_then(|(_, rest)| rest.split_once('/')).map(|(_, rest)| rest);
    let file = torch(file).or_else(|| installed(file)).or_else(stdlib).or_else(|| file.strip_prefix(root));
    format!("{}{line}", file.unwrap_or_else(|| self::file(frame)))
}

/// Replaces the frames of every call with the line to show.
pub fn settle(raw: &mut Raw) {
    let chosen: Vec<String> = raw.calls.iter().map(|c| shown(&c.source).to_string()).collect();
    let root = common(chosen.iter().map(String::as_str));
    for (call, frame) in raw.calls.iter_mut().zip(&chosen) {
        call.source = short(frame, root);
    }
}

/// The same for problems that the shim reports.
pub fn settle_problems(mut errors: ImportErrors) -> ImportErrors {
    let chosen: Vec<String> = errors.errors.iter().map(|p| shown(&p.source).to_string()).collect();
    let root = common(chosen.iter().map(String::as_str));
    let set = |(p, frame): (&mut Problem, &String)| p.source = short(frame, root);
    errors.errors.iter_mut().zip(&chosen).for_each(set);
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    const VENV: &str = "/opt/venv/lib/python3.11/site-packages";

    fn line(frames: &[&str]) -> String {
        let text = frames.join("\n").replace('~', VENV);
        let frame = shown(&text);
        short(frame, common([frame].into_iter()))
    }

    #[test]
    fn the_innermost_frame_outside_of_torch() {
        let trace = "~/torch/jit/_trace.py:1277";
        let linear = ["~/torch/nn/functional.py:1723", "~/torch/nn/modules/linear.py:134"];
        assert_eq!(line(&[linear[0], linear[1], "/home/me/net.py:7", trace, "/home/me/export.py:3"]), "net.py:7");
        let bert = "~/transformers/models/bert/modeling_bert.py:301";
        assert_eq!(
            line(&[linear[0], bert, "/home/me/wrap.py:5", trace]),
            "transformers/models/bert/modeling_bert.py:301"
        );
        // Only torch frames: a torch module was traced directly.
        assert_eq!(line(&[linear[0], linear[1], trace, "/home/me/export.py:3"]), "torch/nn/functional.py:1723");
        assert_eq!(line(&["/src/pytorch/torch/nn/functional.py:3", "/src/torch/net.py:2"]), "net.py:2");
        assert_eq!(line(&["<string>:2"]), "<string>:2");
        assert_eq!(line(&[]), "");
    }

    #[test]
    fn own_files_are_relative_to_their_common_folder() {
        let frames = ["/home/me/nets/a/block.py:1", "/home/me/nets/b/block.py:2", "/opt/site-packages/timm/x.py:3"];
        let root = common(frames.into_iter());
        assert_eq!(frames.map(|f| short(f, root)), ["a/block.py:1", "b/block.py:2", "timm/x.py:3"]);
    }
}
