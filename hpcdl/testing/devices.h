#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/device.h"

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

}  // namespace hpcdl::testing
