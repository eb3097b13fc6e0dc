// AWQ in the layout "GEMM": words hold the codes of eight outputs, in the order 0 2 4 6 1 3 5 7.

#include "hpcdl/dtype.h"
#include "hpcdl/io/foreign/expect.h"
#include "hpcdl/io/foreign/packed_matrix.h"

namespace hpcdl::io {
namespace {

/// Of output `n` in the row of words that begins at `first`.
int awq_code(const Elements<std::uint32_t>& words, std::int64_t first, std::int64_t n) {
  constexpr int kNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // of each output of a word
  return static_cast<int>(words[first + n / 8] >> (4 * kNibble[n % 8]) & 15u);
}

}  // namespace

std::optional<PackedMatrix> find_awq(const PackConfig& config, const TensorFolder& files, const std::string& stem) {
  const auto found = files.find(stem + "qweight");
  if (!found) return std::nullopt;
  const View& words = *found;
  require(words.rank() == 2 && words.dtype() == DType::i32, "io", "{}: {}qweight: expected a matrix of I32, found {}",
          files.path().string(), stem, to_string(words.spec()));
  const auto inputs = words[0], outputs = words[1] * 8, group = config.group == 0 ? inputs : config.group;
  require(inputs % group == 0, "io", "{}: {}qweight: expected inputs in groups of {}, found {}", files.path().string(),
          stem, group, inputs);
  const View zeros = expect_tensor(files, stem + "qzeros", {{inputs / group, outputs / 8}, DType::i32});
  const View scales = expect_tensor(files, stem + "scales", {{inputs / group, outputs}, DType::f16});
  return PackedMatrix{.rows = outputs,
                      .columns = inputs,
                      .dtype = DType::f16,
                      .decode = [=](std::int64_t begin, std::int64_t end, float* out) {
                        const Elements<std::uint32_t> q(words), z(zeros);
                        const Elements<f16> s(scales);
                        for (std::int64_t k = 0; k < inputs; ++k) {
                          const auto g = k / group;
                          for (auto n = begin; n < end; ++n) {
                            const int step = awq_code(q, k * (outputs / 8), n) - awq_code(z, g * (outputs / 8), n);
                            out[(n - begin) * inputs + k] =
                                static_cast<float>(s[g * outputs + n]) * static_cast<float>(step);
                          }
                        }
                      }};
}

}  // namespace hpcdl::io
