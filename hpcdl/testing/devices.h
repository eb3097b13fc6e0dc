#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/device.h"
#include "hpcdl/pool.h"
#include "hpcdl/stream.h"

namespace hpcdl::testing {

/// Parameters of tests that run on every kind of device of this machine.
inline std::vector<Device> devices() {
  std::vector<Device> list{Device::cpu()};
  if (cuda_devices() > 0) list.push_back(Device::cuda(0));
  return list;
}
inline std::string device_kind(const ::testing::TestParamInfo<Device>& each) {
  return each.param.is_cuda() ? "cuda" : "cpu";
}

/// Calls f(stream) for a stream of each.
template <class F> void on_every_device(F&& f) {
  Pool pool(2);
  for (const Device device : devices()) {
    Stream s(device, pool);
    f(s);
  }
}

}  // namespace hpcdl::testing
