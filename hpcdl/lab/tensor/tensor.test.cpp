#include "hpcdl/lab/tensor/tensor.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "hpcdl/models/family.h"
#include "hpcdl/testing/ranks.h"

namespace hpcdl::lab {
namespace {

/// The group's counters equal the formulas, to the byte if sizes are multiples of the number of ranks.
TEST(bench_tensor, bytes_between_ranks_are_those_of_the_formulas) {
  for (const auto family : {io::Family::gpt2, io::Family::llama}) {
    for (const int n : {1, 2, 4}) {
      for (const auto compute : {DType::f32, DType::bf16}) {
        testing::run_ranks(n, [&](const comm::Group& world) {
          io::ModelConfig c;
          c.family = family, c.layers = 3, c.heads = 4, c.width = 64, c.context = 16, c.vocab = 50;
          models::resolve(c);
          Pool pool(1);
          const auto report = bench_tensor(world, pool, c, {.batch = 2, .rounds = 1, .compute = compute});
          ASSERT_EQ(report.results.size(), 3u);
          for (const auto& r : report.results) {
            EXPECT_DOUBLE_EQ(r.wire_bytes, r.declared_bytes) << nn::scheme_name(r.scheme) << ' ' << n;
            EXPECT_NEAR(r.loss, report.results[0].loss, (compute == DType::f32 ? 1e-5 : 0x1p-8) * r.loss);
            EXPECT_GT(r.seconds(), 0);
          }
          if (n > 1) {
            EXPECT_GT(report.results[2].wire_bytes, 1.5 * report.results[0].wire_bytes);
          }
          EXPECT_NE(tensor_table(report).find("sequence"), std::string::npos);
          EXPECT_EQ(tensor_json(report)["schemes"].size(), 3u);
        });
      }
    }
  }
}

}  // namespace
}  // namespace hpcdl::lab
