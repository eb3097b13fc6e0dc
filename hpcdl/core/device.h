#pragma once

#include <cstdint>

namespace hpcdl {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int16_t index = 0;
  constexpr bool operator==(const Device&) const = default;
};

constexpr Device cpu() { return {}; }
constexpr Device cuda(int index = 0) { return {DeviceKind::cuda, static_cast<std::int16_t>(index)}; }

}  // namespace hpcdl
