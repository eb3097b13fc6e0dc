// GPTQ: words of 32 bits hold codes one after the other, down the inputs in qweight and along the outputs in qzeros.

#include <algorithm>
#include <vector>

#include "hpcdl/dtype.h"
#include "hpcdl/io/foreign/expect.h"
#include "hpcdl/io/foreign/packed_matrix.h"

namespace hpcdl::io {
namespace {

/// Code `i` of a row of codes whose word `w` is words[first + w * stride].
int code_at(const Elements<std::uint32_t>& words, std::int64_t first, std::int64_t stride, std::int64_t i,
            std::int64_t bits) {
  const auto at = i * bits, shift = at % 32;
  std::uint64_t two = words[first + at / 32 * stride];
  if (shift + bits > 32) two |= std::uint64_t{words[first + (at / 32 + 1) * stride]} << 32;
  return static_cast<int>(two >> shift & ((std::uint64_t{1} << bits) - 1));
}

/// The group of each input.
std::vector<std::int32_t> groups_of(const PackConfig& config, const TensorFolder& files, const std::string& stem,
                                    std::int64_t inputs, std::int64_t groups) {
  std::vector<std::int32_t> of(static_cast<std::size_t>(inputs));
  const auto size = config.group == 0 ? inputs : config.group;
  const auto name = stem + "g_idx";
  const bool listed = files.contains(name);
  const View list = listed ? expect_tensor(files, name, {{inputs}, DType::i32}) : View();
  for (std::int64_t i = 0; i < inputs; ++i) {
    const auto g = listed ? Elements<std::int32_t>(list)[i] : static_cast<std::int32_t>(i / size);
    require(g >= 0 && g < groups, "io", "{}: {}: expected groups 0 to {} for the {} inputs, found {} for input {}",
            files.path().string(), listed ? name : stem + "scales", groups - 1, inputs, g, i);
    of[static_cast<std::size_t>(i)] = g;
  }
  return of;
}

}  // namespace

std::optional<PackedMatrix> find_gptq(const PackConfig& config, const TensorFolder& files, const std::string& stem) {
  const auto found = files.find(stem + "qweight");
  if (!found) return std::nullopt;
  const View& words = *found;
  const auto bits = config.bits;
  require(words.rank() == 2 && words.dtype() == DType::i32 && words[0] * 32 % bits == 0, "io",
          "{}: {}qweight: expected a matrix of I32 with codes of {} bits, found {}", files.path().string(), stem, bits,
          to_string(words.spec()));
  const auto inputs = words[0] * 32 / bits, outputs = words[1];
  require(outputs * bits % 32 == 0, "io", "{}: {}qweight: expected a multiple of {} outputs, found {}",
          files.path().string(), stem, 32 / bits, outputs);
  const View scales = files.at(stem + "scales");
  require(scales.rank() == 2 && scales[1] == outputs && scales.dtype() == DType::f16, "io",
          "{}: {}scales: expected F16 (groups, {}), found {}", files.path().string(), stem, outputs,
          to_string(scales.spec()));
  const auto groups = scales[0];
  const View zeros = expect_tensor(files, stem + "qzeros", {{groups, outputs * bits / 32}, DType::i32});
  const auto width = zeros[1];
  return PackedMatrix{.rows = outputs,
                      .columns = inputs,
                      .dtype = DType::f16,
                      .decode = [=, group_of = groups_of(config, files, stem, inputs, groups),
                                 less_one = config.zeros_less_one](std::int64_t begin, std::int64_t end, float* out) {
                        const Elements<std::uint32_t> q(words), z(zeros);
                        const Elements<f16> s(scales);
                        const int mask = (1 << bits) - 1;
                        for (std::int64_t k = 0; k < inputs; ++k) {
                          const auto g = group_of[static_cast<std::size_t>(k)];
                          for (auto n = begin; n < end; ++n) {
                            const int zero = code_at(z, g * width, 1, n, bits);
                            const int step = code_at(q, n, outputs, k, bits) - (less_one ? (zero + 1) & mask : zero);
                            out[(n - begin) * inputs + k] =
                                static_cast<float>(s[g * outputs + n]) * static_cast<float>(step);
                          }
                        }
                      }};
}

}  // namespace hpcdl::io
