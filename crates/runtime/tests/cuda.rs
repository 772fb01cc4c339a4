//! Tests of CUDA devices that need no GPU: a missing device is an error with a remedy.
use kiln_runtime::{CudaDevice, Device, cuda};

#[test]
fn a_missing_gpu_is_an_error_with_a_remedy() {
    match CudaDevice::open(0) {
        Ok(device) => assert!(device.info().multiprocessors > 0),
        Err(e) => {
            let e = e.to_string();
            assert!(e.starts_with("opening cuda:0: ") && e.contains("--device cpu"), "{e}");
        }
    }
    let far = CudaDevice::open(4096).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(far.starts_with("opening cuda:4096: "), "{far}");
    match cuda::driver() {
        Ok(driver) => assert!(!driver.version.is_empty()),
        Err(e) => assert!(e.to_string().starts_with("opening cuda: ")),
    }
}

#[test]
fn devices_by_name() {
    assert!(matches!(Device::open("cpu").unwrap(), Device::Host(_)));
    assert!(matches!(Device::open("cpu:3").unwrap(), Device::Host(h) if h.threads() == 3));
    for odd in ["gpu", "cuda:x", "cpu:-1", ""] {
        let e = Device::open(odd).err().unwrap().to_string();
        assert_eq!(e, format!("opening `{odd}`: there is no such device; write cpu or cuda:0"));
    }
}
