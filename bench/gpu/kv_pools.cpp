// Decode attention by the type of the pool, in turns: microseconds, and the share of the GPU's read rate.
//   kv_pools [MILLISECONDS] > JSON      bench/results/NAME/kv_pools.json; of each type and round

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bench/gpu/turns.h"
#include "hpcdl/buffer.h"
#include "hpcdl/ops/kv_write/kv_write.h"
#include "hpcdl/ops/paged_attention/paged_attention.h"
#include "tools/measure_roofs.h"
#include "tools/tune/reference.h"

namespace hpcdl {
namespace {

struct Shape {
  std::int64_t texts, heads, kv_heads, width, keys;
  std::int64_t pages() const { return texts * keys / kPageTokens; }
};
constexpr std::int64_t kWidths[] = {64, 96, 128, 256}, kTexts[] = {1, 8, 32, 64}, kKeys[] = {2048, 8192, 32768};
constexpr std::int64_t kHeads = 32, kKvHeads = 8, kMost = std::int64_t{64} * 32768 * 128;  // elements of a head's keys
constexpr DType kTypes[] = {DType::bf16, DType::i8, DType::f8_e4m3};

struct Pools {
  OwnedTensor keys, values;
  Pools(Stream& s, const Shape& z, DType type, View k, View v, View slots)
      : keys(pool_of(z.pages(), z.kv_heads, z.width, type), s.device()), values(keys.tensor.spec(), s.device()) {
    KvWrite::write(s, keys.tensor, values.tensor, k, v, slots);
  }
};

OwnedTensor counted(Stream& s, ::hpcdl::Shape shape, DType type, std::int64_t step) {
  OwnedTensor here({shape, type}), there({shape, type}, s.device());
  for (std::int64_t i = 0; i < here.tensor.size(); ++i)
    if (type == DType::i64) here.tensor.ptr<std::int64_t>()[i] = i * step;
    else here.tensor.ptr<std::int32_t>()[i] = static_cast<std::int32_t>(i * step);
  copy(s, there.tensor, here.tensor);
  s.synchronize();
  return there;
}

nlohmann::ordered_json measured(Stream& s, const Shape& z, double read_rate, double milliseconds) {
  std::vector<Pools> pools;
  {
    const Spec rows{{1, z.pages() * kPageTokens, z.kv_heads * z.width}, DType::bf16};
    const OwnedTensor k(rows, s.device()), v(rows, s.device());
    lab::tune::fill_random(s, k.tensor, 1), lab::tune::fill_random(s, v.tensor, 2);
    const auto slots = counted(s, {rows[1]}, DType::i64, 1);
    for (const DType type : kTypes) pools.emplace_back(s, z, type, k.tensor, v.tensor, slots.tensor);
    s.synchronize();
  }
  const OwnedTensor q({{1, z.texts, z.heads * z.width}, DType::bf16}, s.device()), out(q.tensor.spec(), s.device());
  lab::tune::fill_random(s, q.tensor, 3);
  const auto starts = counted(s, {z.texts + 1}, DType::i32, 1),
             pages = counted(s, {z.texts, z.keys / kPageTokens}, DType::i32, 1);
  OwnedTensor lengths({{z.texts}, DType::i32}, s.device());
  const std::vector<std::int32_t> all(static_cast<std::size_t>(z.texts), static_cast<std::int32_t>(z.keys));
  copy(s, lengths.tensor, View(all.data(), lengths.tensor.spec()));
  s.synchronize();
  const PagedAttention::Args a{.heads = static_cast<int>(z.heads), .most_queries = 1};
  std::vector<OwnedTensor> scratch;
  for (const Pools& x : pools)
    scratch.emplace_back(
        PagedAttention::scratch(q.tensor.spec(), x.keys.tensor.spec(), {}, {}, {}, pages.tensor.spec(), a)[0],
        s.device());
  std::vector<bench::Side> sides;
  for (std::size_t i = 0; i < pools.size(); ++i)
    sides.push_back({std::string(dtype_name(kTypes[i])), [&, i] {
                       PagedAttention::forward(s, out.tensor, q.tensor, pools[i].keys.tensor, pools[i].values.tensor,
                                               starts.tensor, lengths.tensor, pages.tensor, scratch[i].tensor, a);
                     }});
  bench::measure(s, sides, 7, 1e3 * milliseconds);
  nlohmann::ordered_json row{
      {"texts", z.texts}, {"heads", z.heads}, {"kv_heads", z.kv_heads}, {"width", z.width}, {"keys", z.keys}};
  const auto first = bench::median(sides[0].us);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const auto us = bench::median(sides[i].us);
    const auto bytes = 2 * static_cast<double>(pools[i].keys.tensor.bytes());
    const auto rounded = [](double x) { return std::stod(fmt::format("{:.3f}", x)); };
    row[sides[i].name] = {{"us", rounded(us)},
                          {"times_as_fast", rounded(first / us)},
                          {"of_read_rate", rounded(bytes / us * 1e6 / read_rate)}};
  }
  return row;
}

int run(double milliseconds) {
  Pool pool(1);
  Stream s(Device::cuda(0), pool);
  cudaDeviceProp gpu;
  cuda::check(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  const double read_rate = lab::roofs(s.device(), pool, lab::Remember::best).memory_read;
  nlohmann::ordered_json all{{"machine", {{"gpu", gpu.name}}},
                             {"case", "one query of each text over a pool of each type, in turns; medians"},
                             {"read_bytes_per_second", read_rate},
                             {"rows", nlohmann::ordered_json::array()}};
  for (const auto width : kWidths)
    for (const auto texts : kTexts)
      for (const auto keys : kKeys)
        if (texts * keys * width <= kMost)
          all["rows"].push_back(measured(s, {texts, kHeads, kKvHeads, width, keys}, read_rate, milliseconds));
  std::puts(all.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace hpcdl

int main(int argc, char** argv) { return hpcdl::run(argc > 1 ? std::atof(argv[1]) : 4); }
