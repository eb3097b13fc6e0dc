// What adapters add to a product: rows by themselves and tiles of rows, by how many rows there are, how many ranks, and
// how the adapters of neighbours differ; in turns, as graphs of consecutive calls; medians in microseconds. The product
// itself is beside them. The choice in hpcdl/ops/adapter_rows/adapter_rows.cu is based on its table.
//   adapter_rows [INPUTSxOUTPUTS...]

#include <cstdio>
#include <string>
#include <vector>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/adapter_rows/rows.cuh"
#include "hpcdl/ops/adapter_rows/tiles.cuh"
#include "hpcdl/ops/linear/linear.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

constexpr int kCalls = 8;

OwnedTensor drawn(Stream& s, const Spec& spec, std::uint64_t seed) {
  OwnedTensor t(spec, s.device());
  lab::tune::fill_random(s, t.tensor, seed);
  return t;
}

OwnedTensor ints(Stream& s, const std::vector<std::int32_t>& values) {
  OwnedTensor t({{std::ssize(values)}, DType::i32}, s.device());
  copy(s, t.tensor, View(values.data(), t.tensor.spec()));
  s.synchronize();
  return t;
}

/// `run`: neighbouring rows with one adapter.
void measure(Stream& s, std::int64_t inputs, std::int64_t outputs, int rows, int rank, int adapters, int run) {
  const auto weights = drawn(s, {{outputs, inputs}, DType::bf16}, 1), x = drawn(s, {{rows, inputs}, DType::bf16}, 2),
             y = drawn(s, {{rows, outputs}, DType::bf16}, 3), a = drawn(s, {{adapters * rank, inputs}, DType::bf16}, 4),
             b = drawn(s, {{adapters * rank * outputs}, DType::bf16}, 5),
             scales = drawn(s, {{adapters}, DType::f32}, 6), low = drawn(s, {{rows, adapters * rank}, DType::bf16}, 7);
  std::vector<std::int32_t> ends, chosen;
  for (int i = 0; i < adapters; ++i) ends.push_back((i + 1) * rank);
  for (int r = 0; r < rows; ++r) chosen.push_back(r / run % adapters);
  const auto choices = ints(s, chosen), limits = ints(s, ends);
  const cuda::AdapterOperands p{.y = y.tensor.data(),
                                .low = low.tensor.data(),
                                .base = y.tensor.data(),
                                .x = x.tensor.data(),
                                .a = a.tensor.data(),
                                .b = b.tensor.data(),
                                .chosen = choices.tensor.ptr<std::int32_t>(),
                                .ends = limits.tensor.ptr<std::int32_t>(),
                                .scales = scales.tensor.ptr<float>(),
                                .shifts = nullptr,
                                .y_stride = outputs,
                                .base_stride = outputs,
                                .x_stride = inputs,
                                .rows = rows,
                                .inputs = static_cast<int>(inputs),
                                .outputs = static_cast<int>(outputs),
                                .ranks = adapters * rank,
                                .adapters = adapters};
  const auto side = [&](std::string name, auto call) {
    return bench::Side{std::move(name), [&s, call] {
                         for (int i = 0; i < kCalls; ++i) call(s);
                       }};
  };
  std::vector<bench::Side> sides;
  sides.push_back(side("rows", [&](Stream& q) { cuda::adapter_row::run<bf16, bf16>(q, p); }));
  sides.push_back(side("tiles", [&](Stream& q) { cuda::adapter_tile::run<bf16>(q, p); }));
  sides.push_back(side("product", [&](Stream& q) {
    Linear::forward(q, y.tensor, x.tensor, weights.tensor, {}, {}, {.constant_weights = true});
  }));
  bench::measure(s, sides, 5, 1500);
  std::printf("%lldx%lld rank %d, %d adapters in runs of %d, %4d rows:", static_cast<long long>(inputs),
              static_cast<long long>(outputs), rank, adapters, run, rows);
  for (const auto& each : sides) std::printf("  %s %.2f", each.name.c_str(), bench::median(each.us) / kCalls);
  std::printf("\n");
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) {
  using namespace hpcdl;
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  std::vector<std::pair<long long, long long>> shapes;
  for (int i = 1; i < argc; ++i) {
    auto& [inputs, outputs] = shapes.emplace_back();
    if (std::sscanf(argv[i], "%lldx%lld", &inputs, &outputs) != 2) return std::fprintf(stderr, "expected KxN\n"), 1;
  }
  if (shapes.empty()) shapes = {{4096, 4096}, {4096, 14336}};
  for (const auto& [inputs, outputs] : shapes)
    for (const auto& [rank, adapters, run] : {std::tuple{16, 8, 1}, std::tuple{16, 8, 64}, std::tuple{64, 4, 1}})
      for (const int rows : {1, 8, 16, 32, 64, 128, 256, 2048}) measure(s, inputs, outputs, rows, rank, adapters, run);
}
