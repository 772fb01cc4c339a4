//! The report as one self-contained page: no network, light and dark, a table that sorts, each kernel's details behind it.
use crate::explain::{KernelReport, Report};
use std::fmt::Write as _;

const STYLE: &str = "
:root { color-scheme: light dark; --line: #8884; --accent: #2a6fdb; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } .numbers { font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
th button { all: unset; cursor: pointer; font-weight: 600; } th button:focus-visible, summary:focus-visible { outline: 2px solid var(--accent); }
summary { cursor: pointer; font-weight: 600; } dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { opacity: .7; } dd { margin: 0; } code { font-size: .9em; } .bar { height: .4rem; background: var(--accent); border-radius: 2px; }
";

const SCRIPT: &str = "
for (const b of document.querySelectorAll('th button')) b.onclick = () => {
  const head = b.closest('th'), i = [...head.parentNode.children].indexOf(head), body = document.querySelector('tbody');
  const down = head.getAttribute('aria-sort') !== 'descending';
  for (const h of head.parentNode.children) h.removeAttribute('aria-sort');
  head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const key = r => { const c = r.children[i]; return c.dataset.v === undefined ? c.textContent : Number(c.dataset.v); };
  const rows = [...body.rows].sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1); });
  body.append(...rows);
};
";

/// Text made safe between tags and in quoted attributes.
fn escape(s: &str) -> String {
    s.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The page.
pub fn page(r: &Report) -> String {
    let mut t = String::new();
    let title = format!("{} on {}", escape(&r.model), escape(&r.target));
    let _ = write!(
        t,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"numbers\">{} ops became {} kernels. Predicted {:.1} us; lower bound {:.1} us. E-graph: {} nodes to {} in {} \
         iterations ({}); {} candidates. Numerics: {}.</p>\n",
        r.nodes,
        r.kernels.len(),
        r.predicted_us,
        r.lower_bound_us,
        r.search.enodes_before,
        r.search.enodes_after,
        r.search.iterations,
        escape(&r.search.stopped),
        r.search.candidates,
        escape(&r.numerics)
    );
    if r.fallback_why.is_empty() {
        t += "<p>Nothing falls back.</p>\n";
    } else {
        t += "<h2>Falls back</h2><ul>\n";
        for f in &r.fallback_why {
            let _ = writeln!(t, "<li><code>{}</code> {} {}</li>", escape(&f.op), escape(&f.why), escape(&f.line));
        }
        t += "</ul>\n";
    }
    t += "<h2>Kernels</h2>\n<table><thead><tr>";
    for (name, class) in [("kernel", ""), ("ops", "n"), ("MB", "n"), ("Mflop", "n"), ("us", "n"), ("share", "n")] {
        let _ = write!(t, "<th class=\"{class}\"><button type=\"button\">{name}</button></th>");
    }
    t += "</tr></thead><tbody>\n";
    r.kernels.iter().for_each(|k| row(&mut t, k, r.predicted_us));
    let _ = write!(t, "</tbody></table>\n<script>{SCRIPT}</script>\n</body></html>\n");
    t
}

fn row(t: &mut String, k: &KernelReport, total: f64) {
    let share = 100.0 * k.predicted_us / total.max(1e-12);
    let (mb, mflop) = ((k.bytes_read + k.bytes_written) as f64 / 1e6, k.flops as f64 / 1e6);
    let _ = write!(
        t,
        "<tr><td><details><summary>{}</summary><dl><dt>why</dt><dd>{}</dd><dt>ops</dt><dd><code>{}</code></dd>",
        escape(&k.name),
        escape(&k.reason),
        escape(&k.nodes.join(" "))
    );
    for s in &k.stops {
        let _ = write!(t, "<dt>not with {}</dt><dd>{}</dd>", escape(&s.kernel), escape(&s.why));
    }
    for (name, list) in [("modules", &k.modules), ("source", &k.lines)] {
        if !list.is_empty() {
            let _ = write!(t, "<dt>{name}</dt><dd>{}</dd>", escape(&list.join(", ")));
        }
    }
    let n = |v: f64, digits: usize| format!("<td class=\"n\" data-v=\"{v}\">{v:.digits$}</td>");
    let _ = writeln!(
        t,
        "</dl></details></td><td class=\"n\" data-v=\"{0}\">{0}</td>{1}{2}{3}<td class=\"n\" data-v=\"{share}\">{share:.1} %<div class=\"bar\" style=\"width:{share:.1}%\"></div></td></tr>",
        k.nodes.len(),
        n(mb, 3),
        n(mflop, 3),
        n(k.predicted_us, 2)
    );
}
