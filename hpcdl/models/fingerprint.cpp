#include "hpcdl/models/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hpcdl/core/describe.h"
#include "hpcdl/io/crc32c.h"
#include "hpcdl/io/gguf/file.h"

namespace hpcdl::models {
namespace {

constexpr std::int64_t kSample = 4 << 10, kSamples = 16;

std::uint32_t sampled(const std::byte* bytes, std::int64_t n, std::uint32_t crc) {
  const auto last = std::max<std::int64_t>(n - kSample, 0);
  const auto samples = std::min(kSamples, (n + kSample - 1) / kSample);
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto at = samples < kSamples ? i * kSample : last / (samples - 1) * i;
    crc = io::crc32c({bytes + at, static_cast<std::size_t>(std::min(kSample, n - at))}, crc);
  }
  return crc;
}

struct Fingerprinted {
  std::string head;  // name and spec
  const std::byte* bytes;
  std::int64_t size;
};

std::string fingerprint_of(std::vector<Fingerprinted> tensors) {
  std::ranges::sort(tensors, {}, &Fingerprinted::head);
  std::uint32_t crc = 0;
  for (const auto& t : tensors) crc = sampled(t.bytes, t.size, io::crc32c(t.head, crc));
  return fmt::format("{:08x}", crc);
}

}  // namespace

std::string fingerprint(const io::TensorFolder& folder) {
  std::vector<Fingerprinted> tensors;
  for (const auto& t : folder.tensors()) {
    const View v = folder.at(t.name);
    tensors.push_back(
        {fmt::format("{} {}\n", t.name, to_string(v.spec())), static_cast<const std::byte*>(v.data()), v.bytes()});
  }
  return fingerprint_of(std::move(tensors));
}

std::string fingerprint(const io::fs::path& model) {
  if (!io::is_gguf(model)) return fingerprint(io::TensorFolder::open(model));
  const auto file = io::GgufFile::open(model);
  std::vector<Fingerprinted> tensors;
  for (const auto* t : file.tensors())
    tensors.push_back(
        {fmt::format("{} {} {}\n", t->name, io::info_of(t->type).name, to_string(t->shape)), file.data(*t), t->bytes});
  return fingerprint_of(std::move(tensors));
}

}  // namespace hpcdl::models
