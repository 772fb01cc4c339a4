//! Devices that models run on, and the machine descriptions that fit them.
use super::{DeviceKind, Target};
use crate::Error;
use kiln_machine::{Clusters, Limits, Machine, Units};
use kiln_runtime::{CudaDevice, Device, HostDevice};

/// Opens a device.
pub fn open_device(device: DeviceKind, threads: Option<usize>) -> Result<Device, Error> {
    match device {
        DeviceKind::Cpu => {
            HostDevice::new(threads.unwrap_or_else(crate::cores::cores)).map(Device::Host).map_err(Error::from)
        }
        DeviceKind::Cuda(i) => CudaDevice::open(i).map(Device::Cuda).map_err(Error::from),
    }
}

/// The description, updated with what the driver reports of a device. The driver does not report how many clusters run
/// at once; that is scaled with the number of multiprocessors.
pub fn with_facts(m: &Machine, info: &kiln_runtime::cuda::DeviceInfo) -> Machine {
    let were = m.units.multiprocessors.max(1);
    let part = |c: &Clusters| Clusters { at_once: c.at_once * info.multiprocessors / were, ..*c };
    let mut sources = m.sources.clone();
    for section in ["units", "limits"] {
        let from = sources.remove(section).unwrap_or_default();
        sources.insert(section.into(), format!("the driver, for {}; the rest: {from}", info.name));
    }
    Machine {
        sources,
        units: Units { multiprocessors: info.multiprocessors, l2: info.l2, ..m.units },
        limits: Limits {
            shared_per_block: info.shared,
            shared_per_multiprocessor: info.shared_per_multiprocessor,
            registers_per_multiprocessor: info.registers_per_multiprocessor,
            warps_per_multiprocessor: info.warps_per_multiprocessor,
            blocks_per_multiprocessor: info.blocks_per_multiprocessor,
            clusters: m.limits.clusters.iter().map(part).collect(),
            ..m.limits
        },
        ..m.clone()
    }
}

/// A device's name as the driver gives it; `cpu` for the host.
pub fn device_name(device: DeviceKind) -> Result<String, Error> {
    match device {
        DeviceKind::Cpu => Ok("cpu".into()),
        DeviceKind::Cuda(i) => CudaDevice::open(i).map(|d| format!("cuda:{i} {}", d.info().name)).map_err(Error::from),
    }
}

/// The n-th GPU's name alone, as its driver gives it.
pub fn gpu_name(index: usize) -> Result<String, Error> {
    CudaDevice::open(index).map(|d| d.info().name.clone()).map_err(Error::from)
}

/// The target of the n-th GPU, and its machine description where that is not the target's default: the built-in one for
/// a device of this name, or else the default updated with what the driver reports.
pub fn gpu_machine(index: usize) -> Result<(Target, Option<Machine>), Error> {
    let device = CudaDevice::open(index)?;
    let info = device.info();
    let (major, minor) = info.capability;
    let target = Target::of_capability(info.capability).ok_or_else(|| {
        Error::failed(
            format!("GPU {index} has compute capability {major}.{minor}"),
            "Kiln needs 8.0 or later; run with --device cpu",
        )
    })?;
    let machine = match kiln_machine::of_device(target, &info.name) {
        Some(known) if known == target.machine() => None,
        Some(known) => Some(known.clone()),
        None => Some(with_facts(target.machine(), info)),
    };
    Ok((target, machine))
}

/// Compute capability of the n-th GPU.
pub fn cuda_capability(index: usize) -> Result<(u32, u32), Error> {
    CudaDevice::open(index).map(|d| d.info().capability).map_err(Error::from)
}
