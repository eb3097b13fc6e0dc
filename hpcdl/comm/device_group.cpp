#include "hpcdl/comm/device_group.h"

#include "hpcdl/core/error.h"

#if !HPCDL_NCCL

namespace hpcdl::comm {

std::shared_ptr<DeviceGroup> connect_devices(const HostExchange& host, Device) {
  fail("comm", "group {} of {} ranks on GPUs needs NCCL, and this build has none: configure with --preset cuda where nvcc and nccl.h are",
       host.name, host.size);
}

}  // namespace hpcdl::comm

#endif
