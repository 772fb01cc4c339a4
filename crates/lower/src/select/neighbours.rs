//! Schedules near another one, which tuning searches.
use crate::error::LowerError;
use crate::select::candidates::lowered;
use kiln_machine::Machine;
use kiln_plan::matmul_schedule::{MatmulSchedule, MatmulTile, TiledMatmul};
use kiln_plan::{Kernel, Schedule, Step};

/// Schedules that differ from this one in that of one launch, the cheapest of each launch first; none where no launch
/// has a schedule of its own.
pub fn relaunched(kernel: &Kernel, machine: &Machine, schedule: &Schedule) -> Result<Vec<Schedule>, LowerError> {
    /// Most of one launch.
    const MAX_OF_LAUNCH: usize = 6;
    let main = Some(schedule.main()).filter(|s| !s.steps.is_empty());
    let found = lowered(&Kernel { schedule: main, ..kernel.clone() }, machine)?;
    let whole = found.with_launches(schedule.clone());
    let mut all = vec![];
    for l in &found.launches {
        for other in l.schedules.iter().take(MAX_OF_LAUNCH) {
            let swap = |step: &Step| match step {
                Step::Launch(name, _) if *name == l.name => Step::Launch(name.clone(), other.clone()),
                step => step.clone(),
            };
            let swapped: Schedule = whole.steps.iter().map(swap).collect();
            all.extend(Some(swapped).filter(|s| *s != whole));
        }
    }
    Ok(all)
}

/// Schedules that differ in one choice that the model does not price. That of a matmul by warpgroups: in the number of
/// stages and of buffers, their depth, the order of tiles, clusters, tiles in flight. That of a nest: in the registers
/// that a thread may have, since `ptxas` schedules loads by them. Not all of them fit a kernel.
pub fn neighbours(schedule: &Schedule, machine: &Machine) -> Vec<Schedule> {
    let most = machine.limits.registers_per_thread;
    if most > 0 && !schedule.multiplies() && !schedule.only_launches() {
        let own = |s: &&Step| !matches!(s, Step::Registers(_));
        let free: Schedule = schedule.steps.iter().filter(own).cloned().collect();
        let limited = [most.div_ceil(4), most.div_ceil(2), most].map(|n| free.clone().then(Step::Registers(n)));
        return [free].into_iter().chain(limited).filter(|s| s != schedule).collect();
    }
    let Ok(Some(MatmulSchedule::Matmul(p))) = MatmulSchedule::of(schedule) else { return vec![] };
    let (Some(stages), t) = (p.tile.stages, p.tile) else { return vec![] };
    let mut all = vec![];
    let mut put = |tile| all.push(MatmulSchedule::Matmul(TiledMatmul { tile, ..p }).schedule());
    for group in [4, 8, 16, 32, 64] {
        put(MatmulTile { group, ..t });
    }
    for n in stages.saturating_sub(2).max(2)..=stages + 2 {
        put(MatmulTile { stages: Some(n), ..t });
    }
    let cluster = 3 - t.cluster.min(2);
    put(MatmulTile { cluster, persist: t.persist.map(|n| n / cluster * cluster), ..t });
    put(MatmulTile { ping_pong: !t.ping_pong, ..t });
    if let Some(n) = t.buffers {
        put(MatmulTile { buffers: None, ..t });
        put(MatmulTile { buffers: Some(n.div_ceil(2)), ..t });
    }
    let [m, n, k] = t.size;
    put(MatmulTile { size: [m, n, 2 * k], stages: Some((stages / 2).max(2)), ..t });
    put(MatmulTile { size: [m, n, k / 2], stages: Some(stages * 2), ..t });
    all.retain(|n| n != schedule);
    all
}
