//! What is to be known of a kernel's code: resources, widths of its accesses, how matmuls are computed, and the time of
//! a launch by the machine's rates.
use super::{LaunchPrice, LaunchValues, Prediction};
use super::{Stages, work};
use crate::error::Error;
use crate::facts::{Assembled, widths};
use crate::ptxas;
use crate::stages::kernel::Facts as CodeFacts;
use kiln_machine::{Limits, isa};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Facts about a kernel. On the processor only `dots` and `predicted` are known.
#[derive(Clone, Debug, Serialize)]
pub struct KernelFacts {
    /// Its name.
    pub kernel: String,
    /// Which configuration of a tuned kernel ran, and whether the price or a measurement chose it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub configuration: Option<String>,
    /// The machine whose description it was compiled for.
    pub machine: String,
    /// Counts of instructions, registers and shared memory, for a GPU.
    pub code: Option<CodeFacts>,
    /// How many of its warps fit a multiprocessor; known with ptxas.
    pub occupancy: Option<Occupancy>,
    /// Loads from global memory by their bytes.
    pub loads: BTreeMap<usize, usize>,
    /// Stores to global memory by their bytes.
    pub stores: BTreeMap<usize, usize>,
    /// Accesses of shared memory that follow from layouts, by the ways in which banks conflict; 1: none.
    pub bank_conflicts: BTreeMap<usize, usize>,
    /// How matmuls are computed, such as `f32 by tf32`.
    pub dots: Vec<String>,
    /// The time of the launch, if its numbers are known.
    pub predicted: Option<Prediction>,
    /// The price of the launch, by which configurations are compared: with what a roofline lacks.
    pub price: Option<LaunchPrice>,
}

/// Resident warps of a multiprocessor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Occupancy {
    /// Warps that are resident at once.
    pub warps: usize,
    /// Most that could be.
    pub most: usize,
    /// Instances that are resident at once.
    pub instances: usize,
    /// What limits them: `registers`, `shared memory`, `warps` or `instances`.
    pub limit: &'static str,
}

impl Occupancy {
    fn of(code: &CodeFacts, assembled: &Assembled, limits: &Limits) -> Option<Occupancy> {
        let warps = code.threads.div_ceil(isa::WARP).max(1);
        // Registers are given out to warps in units (CUDA occupancy calculator, compute capabilities from 3.0 on).
        const UNIT: usize = 256;
        let registers = (assembled.registers as usize * isa::WARP).next_multiple_of(UNIT).max(UNIT);
        let fits = [
            ("registers", limits.registers_per_multiprocessor / registers / warps),
            ("shared memory", limits.shared_per_multiprocessor.checked_div(code.shared).unwrap_or(usize::MAX)),
            ("warps", limits.warps_per_multiprocessor / warps),
            ("instances", limits.blocks_per_multiprocessor),
        ];
        let (limit, instances) = fits.into_iter().min_by_key(|(_, n)| *n)?;
        Some(Occupancy { warps: instances * warps, most: limits.warps_per_multiprocessor, instances, limit })
    }
}

impl Stages {
    /// Registers, accesses and the predicted time; the latter if the launch's numbers are given.
    ///
    /// # Errors
    /// If ptxas refuses the PTX.
    pub fn facts(&self, launch: Option<&LaunchValues>) -> Result<KernelFacts, Error> {
        let (stages, machine) = (self, &self.machine);
        let found = ptxas::find_ptxas();
        let assembler = found.as_deref().map(|path| (path, machine.arch.name()));
        let name = stages.program.name.clone();
        let code = stages.ptx.as_ref().map(|ptx| CodeFacts::of(&name, ptx, assembler)).transpose()?;
        let occupancy = code.as_ref().and_then(|code| {
            code.assembled.as_ref().and_then(|assembled| Occupancy::of(code, assembled, &machine.limits))
        });
        let text = stages.ptx().unwrap_or_default();
        Ok(KernelFacts {
            configuration: None,
            machine: machine.name.clone(),
            loads: widths(text, "ld.global"),
            stores: widths(text, "st.global"),
            bank_conflicts: stages.ptx.as_ref().map(|ptx| ptx.bank_ways.clone()).unwrap_or_default(),
            dots: work::dots(&stages.program),
            predicted: launch.map(|launch| work::predict(&stages.program, launch, machine)),
            price: launch.map(|launch| stages.price(launch)),
            kernel: name,
            code,
            occupancy,
        })
    }
}

impl KernelFacts {
    /// The facts as text, one per line.
    pub fn text(&self) -> String {
        let mut t = self.code.as_ref().map_or_else(|| format!("{}\n", self.kernel), CodeFacts::text);
        let mut row = |name: &str, text: String| {
            let _ = writeln!(t, "  {name:18} {text}");
        };
        row("machine", self.machine.clone());
        if let Some(configuration) = &self.configuration {
            row("configuration", configuration.clone());
        }
        if let Some(o) = &self.occupancy {
            row("occupancy", format!("{} of {} warps, limited by {}", o.warps, o.most, o.limit));
        }
        for (name, counts) in [("loads", &self.loads), ("stores", &self.stores)] {
            let counts: Vec<String> = counts.iter().map(|(bytes, n)| format!("{n} of {bytes} bytes")).collect();
            if !counts.is_empty() {
                row(name, counts.join(", "));
            }
        }
        let ways = |(ways, n): (&usize, &usize)| match ways {
            1 => format!("{n} without"),
            ways => format!("{n} of {ways} ways"),
        };
        if !self.bank_conflicts.is_empty() {
            row("bank conflicts", self.bank_conflicts.iter().map(ways).collect::<Vec<_>>().join(", "));
        }
        self.dots.iter().for_each(|dot| row("dot", dot.clone()));
        if let Some(p) = &self.predicted {
            let least = if p.is_lower_bound { "at least " } else { "" };
            row("predicted", format!("{least}{:.2} us, bound by {}", p.us, p.bound));
            for (name, us) in &p.terms {
                row(&format!("  {name}"), format!("{us:.2} us"));
            }
        }
        t
    }
}
