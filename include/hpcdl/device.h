#pragma once

#include <cstdint>
#include <string_view>

namespace hpcdl {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int16_t index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int i = 0) { return {DeviceKind::cuda, static_cast<std::int16_t>(i)}; }
  constexpr bool operator==(const Device&) const = default;
  constexpr bool is_cuda() const { return kind == DeviceKind::cuda; }
};

/// GPUs that this process sees; 0 in a build without CUDA, without a driver, and without a GPU.
int cuda_devices();

/// "cpu", "cuda" or "cuda:N". Throws UsageError for anything else, and if there is no such GPU.
Device device_from_name(std::string_view name);

}  // namespace hpcdl
