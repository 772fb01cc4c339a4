//! A kernel as one HTML page that loads nothing.
use super::{KernelFacts, LaunchValues, Stages};
use crate::error::Error;
use crate::html::escape;
use crate::stages::Stage;
use std::fmt::Write as _;

impl Stages {
    /// One HTML page that loads nothing: facts, the program after each pass with what changed, and code.
    /// `configuration`: which of a tuned kernel's ran, and why.
    ///
    /// # Errors
    /// As [`Stages::facts`] and [`Stages::passes`].
    pub fn html(&self, launch: Option<&LaunchValues>, configuration: Option<&str>) -> Result<String, Error> {
        let stages = self;
        let mut body = String::new();
        let mut part = |title: &str, text: &str, open: bool| {
            let open = if open { " open" } else { "" };
            let _ = writeln!(body, "<details{open}><summary>{}</summary><pre>{text}</pre></details>", escape(title));
        };
        let configuration = configuration.map(String::from);
        let facts = KernelFacts { configuration, ..stages.facts(launch)? };
        part("Facts", &escape(&facts.text()), true);
        for pass in stages.passes()? {
            match &pass.diff[..] {
                "" if pass.name == "written" => part("The program as written", &escape(&pass.text), false),
                "" => part(&format!("Pass {}: no change", pass.name), &escape(&pass.text), false),
                diff => part(&format!("Pass {}", pass.name), &coloured(diff), false),
            }
        }
        let last = if stages.ptx.is_some() { Stage::Ptx } else { Stage::Asm };
        for (title, stage) in [("Block program", Stage::Block), ("LLVM IR", Stage::Llvm), ("Code", last)] {
            part(title, &escape(&stages.text(stage)?), false);
        }
        let title = escape(&format!("{} on {}", stages.program.name, stages.machine.name));
        Ok([("{title}", title), ("{style}", include_str!("../html/page.css").into()), ("{body}", body)]
            .iter()
            .fold(include_str!("page.html").to_string(), |page, (hole, text)| page.replace(hole, text)))
    }
}

/// A unified diff with a class on each line that changes.
fn coloured(diff: &str) -> String {
    let line = |line: &str| match line.chars().next() {
        Some('+') => format!("<ins>{}</ins>\n", escape(line)),
        Some('-') => format!("<del>{}</del>\n", escape(line)),
        _ => format!("{}\n", escape(line)),
    };
    diff.lines().map(line).collect()
}
