#include "hpcdl/models/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/crc32c.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kSample = 4 << 10, kSamples = 16;

std::uint32_t sampled(const View& v, std::uint32_t crc) {
  const auto* bytes = static_cast<const std::byte*>(v.data());
  const auto n = v.bytes(), last = std::max<std::int64_t>(n - kSample, 0);
  const auto samples = std::min(kSamples, (n + kSample - 1) / kSample);
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto at = samples < kSamples ? i * kSample : last / (samples - 1) * i;
    crc = io::crc32c({bytes + at, static_cast<std::size_t>(std::min(kSample, n - at))}, crc);
  }
  return crc;
}

}  // namespace

std::string fingerprint(const io::TensorFolder& folder) {
  std::vector<std::string> names;
  for (const auto& t : folder.tensors()) names.push_back(t.name);
  std::ranges::sort(names);
  std::uint32_t crc = 0;
  for (const auto& name : names) {
    const View v = folder.at(name);
    crc = sampled(v, io::crc32c(fmt::format("{} {}\n", name, to_string(v.spec())), crc));
  }
  return fmt::format("{:08x}", crc);
}

}  // namespace hpcdl::models
