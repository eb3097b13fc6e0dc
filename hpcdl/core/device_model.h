#pragma once

#include <string>

#include "hpcdl/device.h"

namespace hpcdl {

/// "NVIDIA H200"; "cpu" for a CPU.
std::string device_model(Device device);

}  // namespace hpcdl
