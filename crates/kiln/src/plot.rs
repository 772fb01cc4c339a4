//! Plots as SVG: a roofline plot of measured kernels, and the times of a sweep.
mod labels;

use crate::{
    Compiled, Error,
    bench::{Bench, KernelTime},
    sweep::Sweep,
};
use kiln_graph::DType;
use kiln_graph::ops::Class;
use kiln_machine::Machine;
use kiln_plan::{Kernel, Plan};
use labels::{FONT, Frame, Label, Labels};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::collections::BTreeSet;

const SIZE: (u32, u32) = (960, 600);
/// Most kernels that are labelled: those with the largest share of the run, if there is space for the label.
const NAMED: usize = 10;
/// Colours that people with any colour vision can distinguish (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(80, 80, 80),
];

/// Replacements of colours on a dark page: black and white are exchanged, and colours that would be too dark are
/// lighter.
const DARK: [(RGBColor, &str); 5] =
    [(WHITE, "#14171b"), (BLACK, "#e6e9ec"), (COLOURS[0], "#4da3e0"), (COLOURS[1], "#f08a4b"), (COLOURS[6], "#b4bac0")];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// An SVG that `draw` fills.
fn svg(draw: impl FnOnce(&Area) -> Result<(), Box<dyn std::error::Error>>) -> Result<String, Error> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)
            .map_err(Into::into)
            .and_then(|()| draw(&area))
            .and_then(|()| Ok(area.present()?))
            .map_err(|e| Error::failed(format!("the plot cannot be drawn: {e}"), "report this with the model"))?;
    }
    Ok(with_dark_mode(&text))
}

/// The same plot with a style sheet for dark mode; rules of a style sheet override an element's attributes.
fn with_dark_mode(svg: &str) -> String {
    let rule = |(light, dark): &(RGBColor, &str)| {
        let hex = format!("#{:02X}{:02X}{:02X}", light.0, light.1, light.2);
        format!("[fill=\"{hex}\"]{{fill:{dark}}}[stroke=\"{hex}\"]{{stroke:{dark}}}")
    };
    let rules: String = DARK.iter().map(rule).collect();
    let Some((tag, rest)) = svg.split_once('>') else { return svg.into() };
    format!("{tag}>\n<style>@media (prefers-color-scheme: dark) {{{rules}}}</style>{rest}")
}

/// The least and the greatest value, with a margin on a logarithmic axis; `None` without positive values.
fn log_range(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let finite = values.filter(|v| v.is_finite() && *v > 0.0);
    let (low, high) = (finite.clone().reduce(f64::min)?, finite.reduce(f64::max)?);
    Some((low / 2.0, high * 2.0))
}

/// A number with an SI prefix, such as `120 G`.
fn prefixed(v: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, unit) = units.into_iter().find(|u| v >= u.0 * 0.9995).unwrap_or((1.0, ""));
    let digits = if v / scale < 10.0 { 1 } else { 0 };
    format!("{:.digits$} {unit}", v / scale)
}

/// A kernel as a point: flops per byte, and flops per second.
fn point(k: &KernelTime) -> Option<(f64, f64)> {
    let at = (k.flops as f64 / k.bytes as f64, k.tflops * 1e12);
    (at.0.is_finite() && at.0 > 0.0 && at.1.is_finite() && at.1 > 0.0).then_some(at)
}

/// The arithmetic roofs that apply to the plan's kernels, lowest first: names and flops per second.
fn roofs(plan: &Plan, m: &Machine) -> Vec<(String, f64)> {
    let matmuls = plan.kernels.iter().filter(|k| k.cost.matrix_flops > 0);
    let anchor = |k: &Kernel| k.body.values().find(|v| Class::of(k.body.op(*v)).is_anchor()).map(|v| k.body.dtype(v));
    let dtypes: BTreeSet<DType> = matmuls.filter_map(anchor).collect();
    let mut roofs = vec![("other arithmetic".to_string(), m.rates.alu)];
    for d in dtypes {
        let (name, rate) = (format!("{} matmuls", d.name()), m.matrix_rate(d.name()));
        match roofs.iter_mut().find(|r| r.1 == rate) {
            Some(same) => same.0 = format!("{}, {name}", same.0),
            None => roofs.push((name, rate)),
        }
    }
    roofs.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    roofs
}

/// Roofline plot of the measured kernels, with the rates of the machine description that priced them.
pub fn roofline(b: &Bench, c: &Compiled) -> Result<String, Error> {
    let m = c.options.machine();
    let title = format!("{} on {}, roofline of `{}`", b.model, b.device, m.name);
    under_roofs(&title, &b.kernels, &roofs(&c.plan, m), m.rates.bandwidth)
}

/// `roofs`: names and flops per second; `bandwidth`: bytes per second.
fn under_roofs(title: &str, kernels: &[KernelTime], roofs: &[(String, f64)], bandwidth: f64) -> Result<String, Error> {
    let points: Vec<(&KernelTime, (f64, f64))> = kernels.iter().filter_map(|k| Some((k, point(k)?))).collect();
    let without = kernels.len() - points.len();
    let top = roofs.iter().map(|r| r.1).fold(0.0, f64::max);
    let xs = points.iter().map(|p| p.1.0).chain([0.1, 2.0 * top / bandwidth]);
    let ys = points.iter().map(|p| p.1.1).chain([0.1 * bandwidth, top]);
    let (x, y) = (log_range(xs).unwrap_or((0.1, 10.0)), log_range(ys).unwrap_or((1e9, 1e12)));
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
        let aside = if without > 0 {
            format!(" (not shown: {} without arithmetic)", kiln_graph::count(without, "kernel"))
        } else {
            String::new()
        };
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .x_desc(format!("flop per byte moved{aside}"))
            .y_desc("flop/s")
            .x_label_formatter(&|v| format!("{v}"))
            .y_label_formatter(&|v| prefixed(*v))
            .draw()?;
        let mut kinds: Vec<&str> = points.iter().map(|p| p.0.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();

        // Labels go into free space: inside the plot, away from the legend, the points and one another.
        let (across, down) = chart.plotting_area().get_pixel_range();
        let mut labels = Labels::new((across.start, down.start), (across.end, down.end));
        let key = (120, 12 + 22 * kinds.len() as i32);
        labels.taken.push(Frame::at((across.start, down.start), key));
        let places: Vec<(i32, i32)> = points.iter().map(|p| chart.backend_coord(&p.1)).collect();
        labels.taken.extend(places.iter().map(|p| Frame::at((p.0 - 5, p.1 - 5), (10, 10))));

        for (_, rate) in roofs {
            let line = [(x.0, (bandwidth * x.0).min(*rate)), (rate / bandwidth, *rate), (x.1, *rate)];
            chart.draw_series(LineSeries::new(line, BLACK.mix(0.6)))?;
        }
        let mut found = vec![];
        for (name, rate) in roofs {
            let text = format!("{name}: {}flop/s", prefixed(*rate));
            let end = chart.backend_coord(&(x.1, *rate));
            found.extend(labels.beside_roof(text, end).map(|l| (l, 0.8)));
        }
        let start = chart.backend_coord(&(x.0 * 1.1, bandwidth * x.0));
        found.extend(labels.beside_roof(format!("memory: {}B/s", prefixed(bandwidth)), start).map(|l| (l, 0.8)));

        for (i, kind) in kinds.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let of_kind = points.iter().filter(|p| p.0.kind == *kind);
            chart
                .draw_series(of_kind.map(|p| Circle::new(p.1, 4, colour.mix(0.7).filled())))?
                .label(*kind)
                .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
        }
        found.extend(largest_named(&points, &places, &mut labels).into_iter().map(|l| (l, 1.0)));
        draw_labels(area, found)?;
        if !kinds.is_empty() {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::UpperLeft)
                .border_style(BLACK.mix(0.3))
                .background_style(WHITE.mix(0.8))
                .draw()?;
        }
        Ok(())
    })
}

/// Labels of the kernels with the largest share of the run, where there is space beside their points.
fn largest_named(points: &[(&KernelTime, (f64, f64))], places: &[(i32, i32)], labels: &mut Labels) -> Vec<Label> {
    let mut largest: Vec<usize> = (0..points.len()).collect();
    largest.sort_by(|a, b| points[*b].0.share.total_cmp(&points[*a].0.share));
    let mut named = vec![];
    for i in largest {
        let text = format!("{} {:.0} %", points[i].0.name, 100.0 * points[i].0.share);
        if named.len() < NAMED {
            named.extend(labels.beside_point(text, places[i]));
        }
    }
    named
}

/// Draws labels at their places, each with the strength of its colour.
fn draw_labels(area: &Area, labels: Vec<(Label, f64)>) -> Result<(), Box<dyn std::error::Error>> {
    for ((text, place), strength) in labels {
        let style = ("sans-serif", FONT).into_font().color(&BLACK.mix(strength)).pos(Pos::new(HPos::Left, VPos::Top));
        area.draw(&Text::new(text, place, style))?;
    }
    Ok(())
}

/// Plot of a sweep: the median of every side over the swept values, with bars from the 10th to the 90th percentile.
pub fn sweep(s: &Sweep) -> Result<String, Error> {
    let (x, y) = (
        log_range(s.points.iter().map(|p| p.value as f64)).unwrap_or((1.0, 10.0)),
        log_range(s.points.iter().flat_map(|p| p.sides()).flat_map(|(_, t)| [t.p10, t.p90])).unwrap_or((0.1, 1.0)),
    );
    let title = format!("{} on {}", s.model, s.device);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale())?;
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .x_desc(s.variable.as_str())
            .y_desc("milliseconds per run")
            .x_label_formatter(&|v| format!("{v}"))
            .y_label_formatter(&|v| format!("{v}"))
            .draw()?;
        for (i, side) in ["fused", "unfused", "torch"].into_iter().enumerate() {
            let colour = COLOURS[i];
            let times: Vec<_> = s
                .points
                .iter()
                .filter_map(|p| Some((p.value as f64, p.sides().into_iter().find(|t| t.0 == side)?.1)))
                .collect();
            if times.is_empty() {
                continue;
            }
            let line = times.iter().map(|(v, t)| (*v, t.median_ms));
            chart
                .draw_series(LineSeries::new(line, colour.stroke_width(2)).point_size(4))?
                .label(side)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
            chart.draw_series(
                times.iter().map(|(v, t)| PathElement::new([(*v, t.p10), (*v, t.p90)], colour.mix(0.6))),
            )?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .border_style(BLACK.mix(0.3))
            .background_style(WHITE.mix(0.8))
            .draw()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{labels::text_size, *};

    fn kernel(i: usize, bytes: u64, flops: u64, median_us: f64) -> KernelTime {
        KernelTime {
            name: format!("gemm_gelu_erf_{i}"),
            kind: ["gemm", "reduction", "pointwise"][i % 3].into(),
            module: String::new(),
            predicted_us: Some(median_us),
            median_us,
            p10: median_us,
            p90: median_us,
            share: 1.0 / (i + 1) as f64,
            bytes,
            flops,
            gbps: bytes as f64 / median_us / 1e3,
            tflops: flops as f64 / median_us / 1e6,
            gap_us: 0.0,
        }
    }
    /// Texts of a plot with their bounding boxes.
    fn texts(svg: &str) -> Vec<(String, Frame)> {
        let value = |tag: &str, name: &str| -> String {
            let rest = tag.split_once(&format!("{name}=\"")).map_or("0", |t| t.1);
            rest.split('"').next().unwrap_or_default().into()
        };
        let number = |tag: &str, name: &str| value(tag, name).parse::<f64>().expect("a number") as i32;
        let all = svg.split("<text ").skip(1).filter(|t| !t.contains("transform"));
        all.map(|t| {
            let (tag, rest) = t.split_once('>').expect("a tag");
            let tag = &format!(" {tag}");
            let text = rest.split_once("</text>").expect("closed").0.trim().to_string();
            let size = text_size(&text);
            let left = match value(tag, "text-anchor").as_str() {
                "end" => size.0,
                "middle" => size.0 / 2,
                _ => 0,
            };
            (text, Frame::at((number(tag, " x") - left, number(tag, " y")), size))
        })
        .collect()
    }

    /// Twelve kernels close together, and roofs that nearly coincide.
    fn crowded() -> String {
        let kernels: Vec<KernelTime> =
            (0..12).map(|i| kernel(i, 1 << 20, (1 << 20) + (i as u64) * 20_000, 12.0 + i as f64 / 10.0)).collect();
        let roofs =
            [("other arithmetic", 2.0e10), ("f32 matmuls", 2.1e10), ("f64 matmuls", 2.4e10), ("bf16 matmuls", 2.5e10)];
        under_roofs("m on cpu", &kernels, &roofs.map(|r| (r.0.to_string(), r.1)), 2e10).expect("draws")
    }

    #[test]
    fn labels_do_not_collide() {
        let svg = crowded();
        let found: Vec<(String, Frame)> = texts(&svg)
            .into_iter()
            .filter(|t| t.0.contains("flop/s:") || t.0.contains(": ") || t.0.ends_with(" %"))
            .collect();
        assert!(found.iter().filter(|t| t.0.ends_with(" %")).count() >= 4, "{found:?}");
        assert_eq!(found.iter().filter(|t| t.0.contains(": ")).count(), 5, "{found:?}");
        for (i, (a, at)) in found.iter().enumerate() {
            assert!(at.right <= SIZE.0 as i32 && at.left >= 0, "`{a}` leaves the plot: {at:?}");
            for (b, other) in &found[..i] {
                assert!(!at.meets(other), "`{a}` at {at:?} covers `{b}` at {other:?}");
            }
        }
    }

    /// Relative luminance (WCAG 2.1) of `#rrggbb`.
    fn luminance(hex: &str) -> f64 {
        let part = |i: usize| {
            let c = f64::from(u8::from_str_radix(&hex[i..i + 2], 16).expect("hexadecimal")) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    #[test]
    fn every_colour_is_seen_on_a_dark_page() {
        let svg = crowded();
        let (sheet, drawing) = svg.split_once("</style>").expect("a style sheet");
        assert!(sheet.contains("@media (prefers-color-scheme: dark)"));
        let background = luminance(DARK[0].1);
        let mut colours: BTreeSet<String> =
            COLOURS.iter().map(|c| format!("#{:02X}{:02X}{:02X}", c.0, c.1, c.2)).collect();
        for attribute in ["fill=\"#", "stroke=\"#"] {
            colours.extend(drawing.split(attribute).skip(1).map(|t| format!("#{}", &t[..6])));
        }
        colours.remove("#FFFFFF");
        for light in colours {
            let rule = format!("[fill=\"{light}\"]{{fill:");
            let shown = sheet.split_once(&rule).map_or(light.as_str(), |t| &t.1[..7]);
            let contrast = (luminance(shown) + 0.05) / (background + 0.05);
            assert!(contrast >= 3.0, "{light} is shown as {shown}, {contrast:.1} to 1 against the background");
        }
    }

    #[test]
    fn numbers_have_prefixes() {
        let shown: Vec<String> = [950.0, 1500.0, 1e9, 4.2e12, 730e12].map(super::prefixed).to_vec();
        assert_eq!(shown, ["950 ", "1.5 k", "1.0 G", "4.2 T", "730 T"]);
        assert_eq!(super::log_range([f64::NAN, 0.0].into_iter()), None);
    }
}
