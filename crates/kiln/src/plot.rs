//! Plots as SVG: kernels under the machine's roofs, and times over a sweep.
use crate::{
    Compiled, Error,
    bench::{Bench, KernelTime},
    sweep::Sweep,
};
use kiln_graph::DType;
use kiln_plan::{Kernel, Machine, Plan};
use kiln_rewrite::class::Class;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::collections::BTreeSet;

const SIZE: (u32, u32) = (960, 600);
/// Kernels that carry their names: those with the largest share of the run …
const NAMED: usize = 10;
/// … that are this far apart, in pixels.
const LABEL: (i32, i32) = (180, 14);
/// Colours that people with any colour vision tell apart (Okabe and Ito, 2008).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(80, 80, 80),
];

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
    Ok(text)
}

/// The least and the greatest, with room on a logarithmic axis; `None` if there are none.
fn log_range(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let finite = values.filter(|v| v.is_finite() && *v > 0.0);
    let (low, high) = (finite.clone().reduce(f64::min)?, finite.reduce(f64::max)?);
    Some((low / 2.0, high * 2.0))
}

/// A number with the prefix of its size, as `120 G`.
fn prefixed(v: f64) -> String {
    let units = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (scale, unit) = units.into_iter().find(|u| v >= u.0 * 0.9995).unwrap_or((1.0, ""));
    let digits = if v / scale < 10.0 { 1 } else { 0 };
    format!("{:.digits$} {unit}", v / scale)
}

/// A kernel as a point: flops for each byte, and flops a second.
fn point(k: &KernelTime) -> Option<(f64, f64)> {
    let at = (k.flops as f64 / k.bytes as f64, k.tflops * 1e12);
    (at.0.is_finite() && at.0 > 0.0 && at.1.is_finite() && at.1 > 0.0).then_some(at)
}

/// The roofs that the plan's kernels can reach, lowest first.
fn roofs(plan: &Plan, m: &Machine) -> Vec<(String, f64)> {
    let products = plan.kernels.iter().filter(|k| k.cost.matrix_flops > 0);
    let anchor = |k: &Kernel| k.body.values().find(|v| Class::of(k.body.op(*v)).is_anchor()).map(|v| k.body.dtype(v));
    let dtypes: BTreeSet<DType> = products.filter_map(anchor).collect();
    let mut roofs = vec![("other arithmetic".to_string(), m.alu)];
    for d in dtypes {
        let (name, rate) = (format!("{} products", d.name()), m.matrix_rate(d));
        match roofs.iter_mut().find(|r| r.1 == rate) {
            Some(same) => same.0 = format!("{}, {name}", same.0),
            None => roofs.push((name, rate)),
        }
    }
    roofs.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    roofs
}

/// Measured kernels under the roofs of the machine description that priced them.
pub fn roofline(b: &Bench, c: &Compiled) -> Result<String, Error> {
    let m = c.options.machine()?;
    let points: Vec<(&KernelTime, (f64, f64))> = b.kernels.iter().filter_map(|k| Some((k, point(k)?))).collect();
    let without = b.kernels.len() - points.len();
    let roofs = roofs(&c.plan, &m);
    let top = roofs.iter().map(|r| r.1).fold(0.0, f64::max);
    let xs = points.iter().map(|p| p.1.0).chain([0.1, 2.0 * top / m.bandwidth]);
    let ys = points.iter().map(|p| p.1.1).chain([0.1 * m.bandwidth, top]);
    let (x, y) = (log_range(xs).unwrap_or((0.1, 10.0)), log_range(ys).unwrap_or((1e9, 1e12)));
    let title = format!("{} on {}, under the roofs of `{}`", b.model, b.device, m.name);
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .caption(title, ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(76)
            .build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
        let aside = if without > 0 { format!(" ({without} kernels do no arithmetic)") } else { String::new() };
        chart
            .configure_mesh()
            .light_line_style(WHITE.mix(0.0))
            .x_desc(format!("flop for each byte moved{aside}"))
            .y_desc("flop/s")
            .x_label_formatter(&|v| format!("{v}"))
            .y_label_formatter(&|v| prefixed(*v))
            .draw()?;
        let text =
            |across, down, colour: RGBAColor| ("sans-serif", 12).into_font().color(&colour).pos(Pos::new(across, down));
        for (name, rate) in &roofs {
            let line = [(x.0, (m.bandwidth * x.0).min(*rate)), (rate / m.bandwidth, *rate), (x.1, *rate)];
            chart.draw_series(LineSeries::new(line, BLACK.mix(0.6)))?;
            let label = format!("{name}: {}flop/s", prefixed(*rate));
            let style = text(HPos::Right, VPos::Bottom, BLACK.mix(0.8));
            chart.draw_series([Text::new(label, (x.1, *rate), style)])?;
        }
        let low = (x.0 * 1.1, m.bandwidth * x.0);
        let style = text(HPos::Left, VPos::Top, BLACK.mix(0.8));
        chart.draw_series([Text::new(format!("memory: {}B/s", prefixed(m.bandwidth)), low, style)])?;
        let mut kinds: Vec<&str> = points.iter().map(|p| p.0.kind.as_str()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for (i, kind) in kinds.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let of_kind = points.iter().filter(|p| p.0.kind == *kind);
            chart
                .draw_series(of_kind.map(|p| Circle::new(p.1, 4, colour.mix(0.7).filled())))?
                .label(*kind)
                .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
        }
        let mut largest: Vec<_> = points.iter().collect();
        largest.sort_by(|a, b| b.0.share.total_cmp(&a.0.share));
        let mut taken: Vec<(i32, i32)> = vec![];
        for (k, at) in largest {
            let place = chart.backend_coord(at);
            let free = |o: &(i32, i32)| (o.0 - place.0).abs() > LABEL.0 || (o.1 - place.1).abs() > LABEL.1;
            if taken.len() == NAMED || !taken.iter().all(free) {
                continue;
            }
            taken.push(place);
            let (across, pad) =
                if place.0 > SIZE.0 as i32 / 2 { (HPos::Right, "\u{a0}\u{a0}") } else { (HPos::Left, "") };
            let label = format!("\u{a0}\u{a0}{} {:.0} %{pad}", k.name, 100.0 * k.share);
            chart.draw_series([Text::new(label, *at, text(across, VPos::Center, BLACK.into()))])?;
        }
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

/// Medians of every side over the swept values, with the 10th and 90th percentile as bars.
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
            .y_desc("milliseconds of a run")
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
    #[test]
    fn numbers_have_prefixes() {
        let shown: Vec<String> = [950.0, 1500.0, 1e9, 4.2e12, 730e12].map(super::prefixed).to_vec();
        assert_eq!(shown, ["950 ", "1.5 k", "1.0 G", "4.2 T", "730 T"]);
        assert_eq!(super::log_range([f64::NAN, 0.0].into_iter()), None);
    }
}
